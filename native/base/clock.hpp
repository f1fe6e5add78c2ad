// Clocks. Every deadline uses the monotonic clock, which `time.monotonic_ns` reads as well.

#pragma once

#include <time.h>

#include <cstdint>

namespace ksrv {

// A deadline that no clock reaches.
inline constexpr std::int64_t NEVER = INT64_MAX;

// About thirty years. Longer timeouts are cut to this value, so that deadlines in nanoseconds cannot overflow.
inline constexpr std::uint64_t LONGEST_TIMEOUT_US = 1'000'000'000'000'000;

inline std::int64_t nanoseconds_of(clockid_t clock) noexcept {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline std::int64_t now_ns() noexcept { return nanoseconds_of(CLOCK_MONOTONIC); }

// The monotonic clock as an unsigned number, as connections store times.
inline std::uint64_t unsigned_now_ns() noexcept { return static_cast<std::uint64_t>(now_ns()); }

// The monotonic clock with a resolution of a few milliseconds, which is cheaper to read.
inline std::uint64_t coarse_now_ns() noexcept {
#ifdef CLOCK_MONOTONIC_COARSE
    return static_cast<std::uint64_t>(nanoseconds_of(CLOCK_MONOTONIC_COARSE));
#else
    return static_cast<std::uint64_t>(now_ns());
#endif
}

}  // namespace ksrv
