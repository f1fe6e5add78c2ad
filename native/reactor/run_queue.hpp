// A queue of messages that wait for a thread in Python, oldest first.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace ksrv {

// A list linked by the member `next`. Any thread pushes and pops.
template <typename Item, Item *Item::*next> class RunQueue {
  public:
    void push(Item *item) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        item->*next = nullptr;
        (last_ ? last_->*next : first_) = item;
        last_ = item;
        count_.fetch_add(1);
    }

    // Null if the queue is empty.
    Item *pop() noexcept {
        return pop_if([](Item *) { return true; });
    }

    // Pops the first item if `wanted(item)` is true, else returns null. `wanted` is called with the mutex locked.
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

    bool empty() const noexcept { return count() == 0; }
    uint32_t count() const noexcept { return count_.load(); }

  private:
    std::mutex mutex_;
    Item *first_ = nullptr, *last_ = nullptr;
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv
