// Chooses a random share of requests, for models whose requests are recorded or run on another version, too.

#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace ksrv {

// Thread-safe. Each call takes the next number of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", 2014). The generator's state is a counter, so that threads never wait for each other.
class Sampler {
public:
    // `share`: from 0 to 1. `pause_ns`: the least time between two chosen requests. Must be called before `chooses`.
    void set(double share, std::int64_t pause_ns, std::uint64_t seed) noexcept {
        pause_ns_ = pause_ns;
        threshold_ = static_cast<std::uint64_t>(share * static_cast<double>(RANGE));
        state_.store(seed, std::memory_order_relaxed);
    }

    // Whether this request is chosen.
    bool chooses() noexcept {
        if (!threshold_) return false;
        std::uint64_t number = state_.fetch_add(STEP, std::memory_order_relaxed) + STEP;
        number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
        number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
        return (number ^ (number >> 31)) % RANGE < threshold_ && (!pause_ns_ || pause_over());
    }

private:
    // Whether the pause after the last chosen request is over; then the next pause begins.
    bool pause_over() noexcept {
        std::int64_t next = next_ns_.load(std::memory_order_relaxed), now = now_ns();
        return now >= next && next_ns_.compare_exchange_strong(next, now + pause_ns_, std::memory_order_relaxed);
    }

    static constexpr std::uint64_t RANGE = std::uint64_t{1} << 53;  // a double represents every integer up to this
    static constexpr std::uint64_t STEP = 0x9e3779b97f4a7c15;

    std::uint64_t threshold_ = 0;
    std::int64_t pause_ns_ = 0;
    std::atomic<std::int64_t> next_ns_{0};
    std::atomic<std::uint64_t> state_{0};
};

}  // namespace ksrv
