// A connection of the HTTP server.
//
// Strategy: a connection has exactly one owner at a time. While it is ARMED, it waits for an event. The I/O thread that
// gets the event, or the sweep at the deadline, claims the connection with one compare-and-swap. While it is OWNED,
// only the thread that claimed it uses it. Connections are never freed while the server lives, so a stale event may
// refer to a connection that was closed and reused: the generation shows this.
//
// To save system calls, epoll is not changed when a thread claims a connection or arms it again. So epoll may report an
// owned connection. That is rare, because a client usually waits for its answer. The thread that gets such an event
// mutes the connection: epoll reports nothing more of it, and the owner must then arm it with epoll_ctl.

#pragma once

#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "http/message.hpp"
#include "http/receive_buffer.hpp"
#include "http/transport.hpp"

namespace ksrv {

enum class Phase : uint8_t {
    free,
    proxy_header,     // the header of the PROXY protocol is incomplete
    handshake,        // the TLS handshake has not begun, or is not finished
    idle,             // between messages, nothing received
    head,             // a head is incomplete
    awaiting_memory,  // the next bytes of the body exceed the budget
    body,             // receiving into the block
    run,              // the engine or the app has the message; not armed
    send,             // an answer waits for the socket
    linger,           // answered and shut down; further bytes are discarded
};

constexpr int PHASES = 10;

// A set of phases as bits.
constexpr uint16_t phases() noexcept { return 0; }
template <class... Others> constexpr uint16_t phases(Phase first, Others... others) noexcept {
    return static_cast<uint16_t>(1u << static_cast<int>(first) | phases(others...));
}

// The phases that may follow each phase. `free` may follow any phase.
constexpr uint16_t ALLOWED_NEXT[PHASES] = {
    /* free */ phases(Phase::idle),
    /* proxy_header */ phases(Phase::handshake, Phase::idle, Phase::head),
    /* handshake */ phases(Phase::idle, Phase::send, Phase::linger),
    // A new connection is in `idle` before `begin`.
    /* idle */ phases(Phase::proxy_header, Phase::handshake, Phase::idle, Phase::head),
    /* head */
    phases(Phase::awaiting_memory, Phase::body, Phase::run, Phase::send, Phase::linger, Phase::idle, Phase::head),
    /* awaiting_memory */ phases(Phase::body, Phase::send, Phase::linger),
    // To `idle` if a complete fast-path request is refused at once because its queue is full.
    /* body */ phases(Phase::awaiting_memory, Phase::run, Phase::send, Phase::linger, Phase::idle),
    // Back to `head` once the caller is known, and to `body` if the app requests it.
    /* run */
    phases(Phase::head, Phase::body, Phase::awaiting_memory, Phase::run, Phase::send, Phase::linger, Phase::idle),
    /* send */ phases(Phase::idle, Phase::head, Phase::linger),
    /* linger */ phases(),
};

// Whether a connection waits for bytes from its client.
inline bool receives(Phase phase) noexcept {
    return phase == Phase::proxy_header || phase == Phase::handshake || phase == Phase::idle || phase == Phase::head ||
           phase == Phase::body;
}

// MUTED: owned, and epoll reports no events of the connection. MUTING: another thread is muting it. ARMING: the owner
// is arming it with epoll_ctl, after which it is ARMED.
enum Claim : uint8_t { OWNED, MUTED, MUTING, ARMING, ARMED };

constexpr size_t SHORT_LOOK = 2048;  // bytes of the read for a head after a large body; see server/receive.cpp

struct Connection : Transport, ReceiveBuffer, Message {
    // Atomic, because stale events read it.
    std::atomic<uint32_t> generation{0};
    std::atomic<uint8_t> claim{OWNED};
    std::atomic<Phase> phase{Phase::free};
    std::atomic<bool> saw_bytes{false};  // at least one byte was received

    uint32_t slot = 0;
    uint64_t tag = 0;             // in epoll: its slot and its generation
    uint16_t listener = 0;
    bool registered = false;      // added to epoll
    uint32_t reported = 0;        // events that epoll reports until the connection is muted
    uint64_t ends_ns = UINT64_MAX;          // an answer from this time on is the connection's last
    uint64_t requests_left = UINT64_MAX;    // before the connection ends

    Connection *next = nullptr;   // in the run queue or in the app's queue
    sockaddr_storage peer;

    // Initialises a connection that was just taken from the table.
    void begin(int socket, uint16_t from, uint64_t its_tag, uint64_t now) noexcept {
        fd = socket;
        tag = its_tag;
        low_water = 1;
        listener = from;
        registered = close_after = body.large = false;
        saw_bytes.store(false, std::memory_order_relaxed);
        filled = 0;
        body.block = nullptr;
        reset_message();
        forget_outgoing(&out);
        out.sent = out.taken = 0;
        out.owners = nullptr;
        stage_ns = now;
        ends_ns = requests_left = UINT64_MAX;
    }

    // Bytes of the body that arrived with the head.
    size_t came_with_head() const noexcept { return filled - head.length; }

    // Builds for sanitizers and fuzzers abort if the transition is not allowed.
    void enter(Phase next, std::memory_order order = std::memory_order_relaxed) noexcept {
#ifdef KSRV_CHECKS_PHASES
        const int now = static_cast<int>(phase.load(std::memory_order_relaxed));
        if (next != Phase::free && !(ALLOWED_NEXT[now] >> static_cast<int>(next) & 1)) abort();
#endif
        phase.store(next, order);
    }

    // For an I/O thread that got an event. False if another thread owns the connection.
    bool claim_for_event() noexcept {
        for (;;) {
            uint8_t seen = ARMED;
            if (claim.compare_exchange_strong(seen, OWNED, std::memory_order_acq_rel)) return true;
            if (seen != ARMED && seen != ARMING) return false;
            sched_yield();  // another thread is arming it: the event came before that was done
        }
    }

    // Arms an owned connection without a system call. False if it was muted.
    bool arm_as_before() noexcept {
        uint8_t seen = OWNED;
        return claim.compare_exchange_strong(seen, ARMED, std::memory_order_release, std::memory_order_acquire);
    }

    // Moves an owned connection to another claim, after any muting is done.
    void settle(Claim wanted) noexcept {
        uint8_t seen = OWNED;
        while (!claim.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel)) {
            if (seen != MUTING) continue;
            sched_yield();
            seen = MUTED;
        }
    }

    // Whether it is between two messages. May be called by threads that do not own it.
    bool is_idle() const noexcept {
        return phase.load(std::memory_order_relaxed) == Phase::idle &&
               saw_bytes.load(std::memory_order_relaxed);
    }

    // For the sweep at a deadline. False if it is not ARMED.
    bool claim_for_sweep() noexcept {
        uint8_t seen = ARMED;
        return claim.compare_exchange_strong(seen, OWNED, std::memory_order_acq_rel);
    }

    // From now on the message waits for its answer. Only one caller of `Turn::take` succeeds, and answers.
    Turn begin_turn() noexcept {
        const uint64_t number = (turn.load(std::memory_order_relaxed) + 1) | 1;
        turn.store(number, std::memory_order_release);
        return {this, number};
    }
    Turn open_turn() noexcept { return {this, turn.load(std::memory_order_acquire)}; }

    // Whether received bytes wait for a thread. epoll does not report them.
    bool holds_unseen() const noexcept {
        const Phase now = phase.load(std::memory_order_relaxed);
        return receives(now) && (tls.unread || (now == Phase::head && searched != filled));
    }

    void reset_message() noexcept {
        Message::reset();
        searched = 0;
    }

    // Chooses the message's id once, by its head.
    void identify() noexcept { Message::identify(reinterpret_cast<const char *>(buffer)); }
};

inline Connection *Turn::take() const noexcept {
    uint64_t open = number;
    const bool taken = connection && (open & 1) &&
                       connection->turn.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel);
    return taken ? connection : nullptr;
}

}  // namespace ksrv
