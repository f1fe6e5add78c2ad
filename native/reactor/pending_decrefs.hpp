// Python objects whose bytes were sent, until a thread with the GIL gives them back.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace ksrv {

// A list through `Item::next`. Any thread adds; the next thread that is in Python takes all. Many of them are worth a visit to
// Python for their own sake, as they are once the sweep has seen them. The list changes under its mutex, and `state_` with it: that
// is the only thing that is read without the mutex.
template <typename Item> class PendingDecrefs {
  public:
    // Adds a list of items that hold so many bytes. True: they have become worth a visit to Python.
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

    // They have waited for long enough.
    void sweep() noexcept {
        if (!any()) return;
        std::lock_guard<std::mutex> guard(mutex_);
        if (first_) note(State::many);
    }

  private:
    static constexpr uint64_t MANY_BYTES = 1u << 20;
    enum class State : uint8_t { none, some, many };

    // Under the mutex. Returns whether they have become many.
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
