// Reserves memory for decoding pictures in the memory budget (memory/memory_budget.hpp).
//
// Strategy: bytes are reserved before the decoder starts, and given back when the pictures are in the rows of the
// batch. If too few bytes are free while other pictures of the process are being decoded, the thread waits for them,
// because they finish soon. Otherwise the reservation is refused. Any thread may call.

#pragma once

#include <cstdint>
#include <mutex>

#include "base/monotonic_condition.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv {

enum class DecodeRoom : int {
    taken,
    wait,       // other pictures are being decoded: retry, unless these pictures are no longer needed
    none,       // no other pictures are being decoded, so that waiting is useless
    too_large,  // exceeds the limit even when alone
};

class DecodeMemory {
  public:
    static constexpr std::int64_t WAIT_NS = 50'000'000;

    static bool is_small(std::uint64_t nbytes) noexcept { return nbytes <= SMALL_REQUEST_BYTES; }

    // Reserves bytes, or sleeps for at most WAIT_NS until bytes may be free.
    DecodeRoom take(std::uint64_t nbytes) noexcept;

    void give_back(std::uint64_t nbytes) noexcept;

    // The number of threads that sleep in `take`.
    int waiting() noexcept;

  private:
    std::mutex mutex_;
    MonotonicCondition changed_;
    std::uint64_t reservations_ = 0;  // not given back yet
    int waiting_ = 0;
};

// The process-wide instance. Never destroyed, because threads outlive exit.
inline DecodeMemory &process_decode_memory() noexcept {
    static DecodeMemory *made = new DecodeMemory;
    return *made;
}

}  // namespace ksrv
