// Python objects whose bytes were sent, and which a thread with the GIL must release.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace ksrv {

// A list of items, linked by `Item::next`. An item holds references to Python objects. Any thread adds; the next thread
// in Python takes all items and releases the objects. A list of at least MANY_BYTES is a reason to enter Python; a
// shorter list becomes a reason at the next sweep. The mutex guards the list and changes of `state_`, which may be read
// without the mutex.
template <typename Item> class PendingDecrefs {
  public:
    // Adds a list of items that hold `bytes` bytes. True if the list has just become a reason to enter Python.
    bool add(Item *first, uint64_t bytes) noexcept {
        Item *last = first;
        while (last->next) last = last->next;
        std::lock_guard<std::mutex> guard(mutex_);
        last->next = first_;
        first_ = first;
        bytes_ += bytes;
        return note(bytes_ >= MANY_BYTES ? State::many : State::some);
    }

    Item *take() noexcept {
        if (!any()) return nullptr;
        std::lock_guard<std::mutex> guard(mutex_);
        Item *taken = first_;
        first_ = nullptr;
        bytes_ = 0;
        state_.store(State::none);
        return taken;
    }

    bool any() const noexcept { return state_.load() != State::none; }
    bool are_many() const noexcept { return state_.load() == State::many; }

    // The items have waited for long enough.
    void sweep() noexcept {
        if (!any()) return;
        std::lock_guard<std::mutex> guard(mutex_);
        if (first_) note(State::many);
    }

  private:
    static constexpr uint64_t MANY_BYTES = 1u << 20;
    enum class State : uint8_t { none, some, many };  // many: a reason to enter Python

    // The caller holds the mutex. True if the state has just become `many`.
    bool note(State reached) noexcept {
        const State before = state_.load(std::memory_order_relaxed);
        if (reached > before) state_.store(reached);
        return reached == State::many && before != State::many;
    }

    std::mutex mutex_;
    Item *first_ = nullptr;
    uint64_t bytes_ = 0;  // of the items in the list
    std::atomic<State> state_{State::none};
};

}  // namespace ksrv
