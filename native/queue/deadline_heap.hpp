// The requests of a queue that have a deadline, in a binary heap. Each request stores its index, so that it can be
// removed from the middle. The caller holds the queue's mutex.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "queue/request.hpp"

namespace ksrv {

class DeadlineHeap {
  public:
    // Throws std::bad_alloc, and then the request is not added.
    void add(Request *request) {
        requests_.push_back(request);
        sift_up(requests_.size() - 1);
    }

    // The request with the earliest deadline. The heap must not be empty.
    Request *first() const noexcept { return requests_.front(); }

    std::int64_t earliest_ns() const noexcept { return requests_.empty() ? NEVER : first()->deadline_ns; }

    // Does nothing if the request is not in the heap.
    void remove(Request *request) noexcept {
        const std::size_t index = request->heap_index;
        if (index == NOWHERE) return;
        request->heap_index = NOWHERE;
        Request *last = requests_.back();
        requests_.pop_back();
        if (last == request) return;
        place(index, last);
        // The last request may belong above or below the gap. At most one of the two moves it.
        sift_up(index);
        sift_down(last->heap_index);
    }

  private:
    void place(std::size_t index, Request *request) noexcept {
        requests_[index] = request;
        request->heap_index = index;
    }

    void sift_up(std::size_t index) noexcept {
        Request *request = requests_[index];
        while (index > 0) {
            const std::size_t parent = (index - 1) / 2;
            if (requests_[parent]->deadline_ns <= request->deadline_ns) break;
            place(index, requests_[parent]);
            index = parent;
        }
        place(index, request);
    }

    void sift_down(std::size_t index) noexcept {
        Request *request = requests_[index];
        for (;;) {
            std::size_t child = 2 * index + 1;
            if (child >= requests_.size()) break;
            if (child + 1 < requests_.size() && requests_[child + 1]->deadline_ns < requests_[child]->deadline_ns) ++child;
            if (request->deadline_ns <= requests_[child]->deadline_ns) break;
            place(index, requests_[child]);
            index = child;
        }
        place(index, request);
    }

    std::vector<Request *> requests_;
};

}  // namespace ksrv
