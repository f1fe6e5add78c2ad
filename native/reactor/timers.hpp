// One timer for each connection: when the sweep must look at the connection.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace ksrv {

// A timer for each slot of the connection table. The owner of a connection sets the timer for its current state; other
// threads may only lower it. A timer changes several times per request and almost never fires. Therefore setting it is
// a plain store, and the sweep reads all of them: 4,096 timers are 32 KiB.
class Timers {
  public:
    static constexpr uint64_t NONE = UINT64_MAX;

    explicit Timers(size_t slots) noexcept
        : count_(slots), at_(new (std::nothrow) std::atomic<uint64_t>[slots]) {
        for (size_t i = 0; at_ && i < count_; ++i) at_[i].store(NONE, std::memory_order_relaxed);
    }

    bool made() const noexcept { return at_ != nullptr; }

    // Only for the owner of the connection.
    void set(uint32_t slot, uint64_t when) noexcept {
        at_[slot].store(when, std::memory_order_relaxed);
    }

    void lower(uint32_t slot, uint64_t when) noexcept {
        uint64_t seen = at_[slot].load(std::memory_order_relaxed);
        while (when < seen && !at_[slot].compare_exchange_weak(seen, when)) {
        }
    }

    uint64_t at(uint32_t slot) const noexcept { return at_[slot].load(std::memory_order_relaxed); }

    bool due(uint32_t slot, uint64_t now) const noexcept {
        return at_[slot].load(std::memory_order_relaxed) <= now;
    }

    // Calls `reached(slot)` for each timer that is at or before `now`.
    template <typename Reached> void sweep(size_t used, uint64_t now, Reached reached) noexcept {
        for (size_t i = 0; i < used && i < count_; ++i)
            if (due(static_cast<uint32_t>(i), now)) reached(static_cast<uint32_t>(i));
    }

  private:
    size_t count_;
    std::unique_ptr<std::atomic<uint64_t>[]> at_;
};

}  // namespace ksrv
