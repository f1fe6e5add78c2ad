// The memory of pictures while they are decoded: it counts among the bytes in flight.
//
// Strategy: who decodes reserves the bytes before the decoder starts and gives them back when the pictures lie
// in their rows. Where the bytes do not suffice while other pictures of the process are decoded, it waits for
// one of those, because they soon give theirs back; where none is, it is refused.

#pragma once

#include <cstdint>
#include <mutex>

#include "base/monotonic_condition.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv {

enum class DecodeRoom : int {
    taken,
    wait,       // others are still being decoded: ask again, unless nobody wants the pictures any more
    none,       // nobody will make room
    too_large,  // even alone
};

class DecodeMemory {
  public:
    static constexpr std::int64_t WAIT_NS = 50000000;

    static bool is_small(std::uint64_t nbytes) noexcept { return nbytes <= MemoryBudget::SMALL_REQUEST; }

    // Reserves bytes, or sleeps for WAIT_NS at most until there may be room.
    DecodeRoom take(std::uint64_t nbytes) noexcept;

    void give_back(std::uint64_t nbytes) noexcept;

    // How many sleep in `take`.
    int waiting() noexcept;

  private:
    std::mutex mutex_;
    MonotonicCondition changed_;
    std::uint64_t held_ = 0;  // how many reservations there are
    int waiting_ = 0;
};

// The process's own; never destroyed, because threads outlive exit.
inline DecodeMemory &process_decode_memory() noexcept {
    static DecodeMemory *made = new DecodeMemory;
    return *made;
}

}  // namespace ksrv
