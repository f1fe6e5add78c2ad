// Tags of connections that wait for a turn of the event loop, in order of arrival.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace ksrv {

// Any thread adds. A connection may be gone before its tag is taken, so the taker must check the generation.
class TagQueue {
  public:
    // Allocates memory for `count` tags, so that adding up to `count` tags does not allocate.
    bool reserve(size_t count) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        try {
            tags_.reserve(count);
        } catch (const std::bad_alloc &) {
            return false;
        }
        return true;
    }

    // True if it is now the only tag in the queue. At most as many tags as were reserved may wait.
    bool push(uint64_t tag) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        const bool first = taken_ == tags_.size();
        if (taken_ && tags_.size() == tags_.capacity()) {  // make room without allocating
            tags_.erase(tags_.begin(), tags_.begin() + static_cast<std::ptrdiff_t>(taken_));
            taken_ = 0;
        }
        tags_.push_back(tag);
        waits_.store(true);
        return first;
    }

    bool pop(uint64_t *tag) noexcept {
        if (!waits()) return false;
        std::lock_guard<std::mutex> guard(mutex_);
        if (taken_ == tags_.size()) return false;
        *tag = tags_[taken_++];
        if (taken_ == tags_.size()) empty();
        return true;
    }

    bool waits() const noexcept { return waits_.load(); }

  private:
    void empty() noexcept {
        tags_.clear();
        taken_ = 0;
        waits_.store(false);
    }

    std::mutex mutex_;
    std::vector<uint64_t> tags_;
    size_t taken_ = 0;  // index of the first tag in `tags_` that was not taken
    std::atomic<bool> waits_{false};
};

}  // namespace ksrv
