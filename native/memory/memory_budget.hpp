// The limit on the bytes that the requests and answers of a process use together.
//
// Strategy: bytes are counted when they arrive and not when they are announced, so that no client reserves bytes that
// it never sends. An eighth is reserved for requests of at most a mebibyte, which are therefore served even if large
// uploads use up the rest. An answer that exceeds the limit is refused, unless no other such answer exists: it is then
// counted outside of the limit. So an answer larger than the limit can be sent, and other requests are still served.
//
// Nothing here throws, waits or uses Python.

#pragma once

#include <atomic>
#include <cstdint>

namespace ksrv {

// How an answer's bytes are counted: not at all, within the limit, or as the only answer outside of the limit.
enum class AnswerRoom : std::uint8_t { none, shared, beside };

inline constexpr std::uint64_t SMALL_REQUEST_BYTES = 1u << 20;
inline constexpr std::uint64_t SMALL_SHARE_PARTS = 8;  // 1/8 of the limit is reserved for small requests

class MemoryBudget {
  public:
    std::uint64_t bound() const noexcept { return bound_.load(std::memory_order_relaxed); }
    void set_bound(std::uint64_t nbytes) noexcept { bound_.store(nbytes, std::memory_order_relaxed); }

    // The most bytes that a request may reserve when it is alone.
    std::uint64_t most(bool small) const noexcept {
        const std::uint64_t whole = bound();
        return small ? whole : whole - whole / SMALL_SHARE_PARTS;
    }

    // The reserved bytes, including an answer outside of the limit.
    std::uint64_t held() const noexcept {
        return bytes_.load(std::memory_order_relaxed) + beside_.load(std::memory_order_relaxed);
    }

    // Reserves bytes if the limit allows it. `small`: the whole request has at most SMALL_REQUEST_BYTES.
    bool reserve(std::uint64_t nbytes, bool small) noexcept {
        const std::uint64_t allowed = most(small);
        std::uint64_t seen = bytes_.load(std::memory_order_relaxed);
        do {
            if (nbytes > allowed || seen > allowed - nbytes) return false;
        } while (!bytes_.compare_exchange_weak(seen, seen + nbytes, std::memory_order_relaxed));
        return true;
    }

    // Reserves bytes regardless of the limit. Only for few and small amounts.
    void take(std::uint64_t nbytes) noexcept { bytes_.fetch_add(nbytes, std::memory_order_relaxed); }

    void give_back(std::uint64_t nbytes) noexcept {
        if (nbytes) bytes_.fetch_sub(nbytes, std::memory_order_relaxed);
    }

    // Reserves the bytes of an answer that already exists.
    AnswerRoom reserve_answer(std::uint64_t nbytes) noexcept {
        if (reserve(nbytes, nbytes <= SMALL_REQUEST_BYTES)) return AnswerRoom::shared;
        std::uint64_t none = 0;
        return beside_.compare_exchange_strong(none, nbytes) ? AnswerRoom::beside : AnswerRoom::none;
    }

    void give_back_answer(std::uint64_t nbytes, AnswerRoom room) noexcept {
        if (room == AnswerRoom::shared) give_back(nbytes);
        if (room == AnswerRoom::beside) beside_.store(0);
    }

  private:
    std::atomic<std::uint64_t> bytes_{0};   // counted within the limit
    std::atomic<std::uint64_t> beside_{0};  // of the answer outside of the limit; 0: no such answer
    std::atomic<std::uint64_t> bound_{UINT64_MAX};
};

// The process-wide budget. Never destroyed, because threads outlive exit.
inline MemoryBudget &process_budget() noexcept {
    static MemoryBudget *made = new MemoryBudget;
    return *made;
}

}  // namespace ksrv
