// The bound on the bytes that requests and answers of a process hold together.
//
// Strategy: bytes are counted when they come and not when they are announced, so that no client
// reserves bytes that it never sends. An eighth is kept for requests of at most a mebibyte, which are served while
// large uploads use up the rest. An answer that finds no room is refused, unless it is the only one of
// that kind: such an answer stands beside the bound, so that one larger than all of it can be sent and
// keeps nobody else from being served.
//
// Nothing here throws, waits or knows Python.

#pragma once

#include <atomic>
#include <cstdint>

namespace ksrv {

enum class AnswerRoom : std::uint8_t { none, shared, beside };

class MemoryBudget {
  public:
    static constexpr std::uint64_t SMALL_REQUEST = 1u << 20;
    static constexpr std::uint64_t SMALL_SHARE = 8;  // the part of the bound that is theirs alone

    std::uint64_t bound() const noexcept { return bound_.load(std::memory_order_relaxed); }
    void set_bound(std::uint64_t nbytes) noexcept { bound_.store(nbytes, std::memory_order_relaxed); }

    // What a request may hold at most when it is alone.
    std::uint64_t most(bool small) const noexcept {
        const std::uint64_t whole = bound();
        return small ? whole : whole - whole / SMALL_SHARE;
    }

    // What is held now, with an answer that stands beside the bound.
    std::uint64_t held() const noexcept {
        return bytes_.load(std::memory_order_relaxed) + beside_.load(std::memory_order_relaxed);
    }

    // Takes bytes if there is room. `small` says that the whole request is of SMALL_REQUEST bytes at most.
    bool reserve(std::uint64_t nbytes, bool small) noexcept {
        const std::uint64_t allowed = most(small);
        std::uint64_t seen = bytes_.load(std::memory_order_relaxed);
        do {
            if (nbytes > allowed || seen > allowed - nbytes) return false;
        } while (!bytes_.compare_exchange_weak(seen, seen + nbytes, std::memory_order_relaxed));
        return true;
    }

    // Takes bytes that are held whether there is room or not; for few and small ones.
    void take(std::uint64_t nbytes) noexcept { bytes_.fetch_add(nbytes, std::memory_order_relaxed); }

    void give_back(std::uint64_t nbytes) noexcept {
        if (nbytes) bytes_.fetch_sub(nbytes, std::memory_order_relaxed);
    }

    // The same for an answer, which is there already.
    AnswerRoom reserve_answer(std::uint64_t nbytes) noexcept {
        if (reserve(nbytes, nbytes <= SMALL_REQUEST)) return AnswerRoom::shared;
        std::uint64_t none = 0;
        return beside_.compare_exchange_strong(none, nbytes) ? AnswerRoom::beside : AnswerRoom::none;
    }

    void give_back_answer(std::uint64_t nbytes, AnswerRoom room) noexcept {
        if (room == AnswerRoom::shared) give_back(nbytes);
        if (room == AnswerRoom::beside) beside_.store(0);
    }

  private:
    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<std::uint64_t> beside_{0};
    std::atomic<std::uint64_t> bound_{UINT64_MAX};
};

// The process's own; never destroyed, because threads outlive exit.
inline MemoryBudget &process_budget() noexcept {
    static MemoryBudget *made = new MemoryBudget;
    return *made;
}

}  // namespace ksrv
