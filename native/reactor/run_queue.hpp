// What waits for Python: requests that are ready, the oldest first.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace ksrv {

// A list through the member `next` of what waits. Any thread pushes; the thread that is in Python pops.
template <typename Item, Item *Item::*next> class RunQueue {
  public:
    void push(Item *item) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        item->*next = nullptr;
        (last_ ? last_->*next : first_) = item;
        last_ = item;
        count_.fetch_add(1);
    }

    // Null where nothing waits.
    Item *pop() noexcept {
        return pop_if([](Item *) { return true; });
    }

    // The first one, if `wanted(item)` is true; null otherwise. `wanted` is called under the queue's mutex.
    template <typename Wanted> Item *pop_if(Wanted wanted) noexcept {
        if (empty()) return nullptr;
        std::lock_guard<std::mutex> guard(mutex_);
        Item *item = first_;
        if (!item || !wanted(item)) return nullptr;
        first_ = item->*next;
        if (!first_) last_ = nullptr;
        item->*next = nullptr;
        count_.fetch_sub(1, std::memory_order_relaxed);
        return item;
    }

    bool empty() const noexcept { return count_.load() == 0; }

  private:
    std::mutex mutex_;
    Item *first_ = nullptr, *last_ = nullptr;
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv
