// Deadlines: the heap in which a queue keeps those of its requests, and the thread that ends them.

#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "queue/request_queue.hpp"

namespace ksrv {

// ---- the timer ------------------------------------------------------------------------------

// One thread that ends requests at their deadlines, for every queue of the process. It never waits
// for the GIL: what Python has to know of an ended request is left for a Python thread to fetch.
class Timer {
  public:
    // False when the thread cannot be started.
    bool watch(Queue *queue) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        try {
            queues_.push_back(queue);
            if (!running_) start_thread();
        } catch (const std::exception &) {
            queues_.erase(std::remove(queues_.begin(), queues_.end(), queue), queues_.end());
            return false;
        }
        retain(queue);
        return true;
    }

    void forget(Queue *queue) noexcept {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            const auto found = std::find(queues_.begin(), queues_.end(), queue);
            if (found == queues_.end()) return;
            queues_.erase(found);
        }
        release(queue);
    }

    // Called after a deadline has been put into a queue's heap.
    void expect(std::int64_t deadline) noexcept {
        if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
        std::lock_guard<std::mutex> guard(mutex_);
        if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
        wake_at_.store(deadline, std::memory_order_relaxed);
        sooner_.notify_one();
    }

    // Around fork: the child has no timer thread and watches nothing of its parent's.
    void before_fork() noexcept { mutex_.lock(); }
    void after_fork_in_parent() noexcept { mutex_.unlock(); }
    void after_fork_in_child() noexcept {
        running_ = false;
        queues_.clear();
        wake_at_.store(NEVER);
        new (&sooner_) MonotonicCondition;
        mutex_.unlock();
    }

  private:
    void start_thread() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for Python's main thread
        try {
            std::thread([this] { run(); }).detach();
            running_ = true;
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void run() noexcept {
        std::vector<Queue *> due;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            const std::int64_t wake = wake_at_.load(std::memory_order_relaxed);
            const std::int64_t now = now_ns();
            if (wake > now) {
                if (wake == NEVER) {
                    sooner_.wait(lock);
                } else {
                    sooner_.wait_until(lock, wake);
                }
                continue;
            }
            // A push that the walk below misses takes its queue's mutex after the walk did, so that
            // it sees NEVER here and names its own deadline.
            wake_at_.store(NEVER, std::memory_order_relaxed);
            due.assign(queues_.begin(), queues_.end());
            for (Queue *queue : due) retain(queue);
            lock.unlock();
            std::int64_t next = NEVER;
            for (Queue *queue : due) {
                next = std::min(next, queue->expire(now));
                release(queue);
            }
            lock.lock();
            if (next < wake_at_.load(std::memory_order_relaxed))
                wake_at_.store(next, std::memory_order_relaxed);
        }
    }

    std::mutex mutex_;
    MonotonicCondition sooner_;
    std::atomic<std::int64_t> wake_at_{NEVER};
    std::vector<Queue *> queues_;
    bool running_ = false;
};

// Never destroyed: its thread outlives the exit handlers.
inline Timer &process_timer() noexcept {
    static Timer *timer = [] {
        static Timer *made = new Timer;
        pthread_atfork([] { made->before_fork(); }, [] { made->after_fork_in_parent(); },
                       [] { made->after_fork_in_child(); });
        return made;
    }();
    return *timer;
}

// ---- deadlines ------------------------------------------------------------------------------

inline void Queue::sift_up(std::size_t index) noexcept {
    Entry *entry = deadlines_[index];
    while (index > 0) {
        const std::size_t parent = (index - 1) / 2;
        if (deadlines_[parent]->deadline_ns <= entry->deadline_ns) break;
        place(index, deadlines_[parent]);
        index = parent;
    }
    place(index, entry);
}

inline void Queue::sift_down(std::size_t index) noexcept {
    Entry *entry = deadlines_[index];
    for (;;) {
        std::size_t child = 2 * index + 1;
        if (child >= deadlines_.size()) break;
        if (child + 1 < deadlines_.size() && before(child + 1, child)) ++child;
        if (entry->deadline_ns <= deadlines_[child]->deadline_ns) break;
        place(index, deadlines_[child]);
        index = child;
    }
    place(index, entry);
}

inline void Queue::forget_deadline(Entry *entry) noexcept {
    const std::size_t index = entry->heap_index;
    if (index == NOWHERE) return;
    entry->heap_index = NOWHERE;
    Entry *last = deadlines_.back();
    deadlines_.pop_back();
    if (last == entry) return;
    place(index, last);
    if (index > 0 && before(index, (index - 1) / 2)) {
        sift_up(index);
    } else {
        sift_down(index);
    }
}

}  // namespace ksrv
