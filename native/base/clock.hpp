// The clock of deadlines.

#pragma once

#include <time.h>

#include <cstdint>

namespace ksrv {

inline uint64_t door_clock() noexcept {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace ksrv
