// A connection of the HTTP server.
//
// Strategy: a connection belongs to exactly one side at a time. While it is ARMED the kernel holds
// it (epoll) and either an I/O thread with its event or the sweep with its deadline takes
// it by one compare-and-swap; while it is OWNED only that thread touches it. Connections are never
// freed while the server lives, so a stale event may look at one: its generation tells.
//
// Epoll goes on reporting a connection that is readable while it is owned. Nearly always it is not, since a
// client waits for its answer, and so the connection is armed again without a system call. Where it is, the
// thread that gets the event mutes it, and its owner tells epoll anew.

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
    handshake,        // TLS has not begun, or is not agreed on
    idle,             // between messages, nothing received
    head,             // a head is incomplete
    awaiting_memory,  // the budget has no room for the next bytes of the body
    body,             // receiving into the block
    run,              // a message is with the engine or with the app; not armed
    send,             // an answer waits for the socket
    linger,           // answered and shut down; further bytes are thrown away
};

constexpr int PHASES = 10;

constexpr uint16_t phases() noexcept { return 0; }
template <class... Others> constexpr uint16_t phases(Phase one, Others... others) noexcept {
    return static_cast<uint16_t>(1u << static_cast<int>(one) | phases(others...));
}

// Which phases may come behind each; `free` may come behind any.
constexpr uint16_t BEHIND[PHASES] = {
    /* free */ phases(Phase::idle),
    /* proxy_header */ phases(Phase::handshake, Phase::idle, Phase::head),
    /* handshake */ phases(Phase::idle, Phase::send, Phase::linger),
    // A place that was just taken is idle before it begins.
    /* idle */ phases(Phase::proxy_header, Phase::handshake, Phase::idle, Phase::head),
    /* head */
    phases(Phase::awaiting_memory, Phase::body, Phase::run, Phase::send, Phase::linger, Phase::idle, Phase::head),
    /* awaiting_memory */ phases(Phase::body, Phase::send, Phase::linger),
    // Idle where a request of the fast path, whole, is refused at once: its queue is full.
    /* body */ phases(Phase::awaiting_memory, Phase::run, Phase::send, Phase::linger, Phase::idle),
    // Back to `head` once the caller is known, to `body` where the app asks for it.
    /* run */
    phases(Phase::head, Phase::body, Phase::awaiting_memory, Phase::run, Phase::send, Phase::linger, Phase::idle),
    /* send */ phases(Phase::run, Phase::idle, Phase::head, Phase::linger),
    /* linger */ phases(),
};

// Whether a connection waits for bytes of its client.
inline bool receives(Phase phase) noexcept {
    return phase == Phase::proxy_header || phase == Phase::handshake || phase == Phase::idle || phase == Phase::head ||
           phase == Phase::body;
}

// MUTED is owned as well, and epoll reports nothing of the connection; MUTING is the way there, by a thread that
// does not own it.
enum Claim : uint8_t { OWNED, MUTED, MUTING, ARMING, ARMED };

constexpr size_t SHORT_LOOK = 2048;

struct Connection : Transport, ReceiveBuffer, Message {
    // Read by events that may be stale, hence atomic.
    std::atomic<uint32_t> generation{0};
    std::atomic<uint8_t> claim{OWNED};
    std::atomic<Phase> phase{Phase::free};
    std::atomic<bool> saw_bytes{false};  // has sent at least one byte

    uint32_t slot = 0;
    uint64_t tag = 0;             // in epoll: its slot and its generation
    uint16_t listener = 0;
    bool registered = false;      // known to epoll
    uint32_t reported = 0;        // events that epoll reports of it until it is muted
    uint64_t ends_ns = UINT64_MAX;          // answers from then on are the connection's last
    uint64_t requests_left = UINT64_MAX;    // before it ends

    Connection *next = nullptr;   // in the run queue or in the app's
    sockaddr_storage peer;
    socklen_t peer_length = 0;

    // Makes a connection that was just taken from the table a new one.
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

    // Bytes of the body that have come with the head.
    size_t came_with_head() const noexcept { return filled - head.length; }

    // Builds for sanitizers and fuzzers stop at a phase that may not come behind the present one.
    void enter(Phase next, std::memory_order order = std::memory_order_relaxed) noexcept {
#ifdef KSRV_CHECKS_PHASES
        const int now = static_cast<int>(phase.load(std::memory_order_relaxed));
        if (next != Phase::free && !(BEHIND[now] >> static_cast<int>(next) & 1)) abort();
#endif
        phase.store(next, order);
    }

    bool claim_for_event() noexcept {
        for (;;) {
            uint8_t seen = ARMED;
            if (claim.compare_exchange_strong(seen, OWNED, std::memory_order_acq_rel)) return true;
            if (seen != ARMED && seen != ARMING) return false;
            sched_yield();  // another thread is just arming it: the event came before it was done
        }
    }

    // Gives an owned connection away again without a word to epoll; false where it was muted.
    bool arm_as_before() noexcept {
        uint8_t seen = OWNED;
        return claim.compare_exchange_strong(seen, ARMED, std::memory_order_release, std::memory_order_acquire);
    }

    // Moves an owned connection to another claim, once no thread mutes it.
    void settle(Claim wanted) noexcept {
        uint8_t seen = OWNED;
        while (!claim.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel)) {
            if (seen != MUTING) continue;
            sched_yield();
            seen = MUTED;
        }
    }

    // Between two messages, as far as threads that do not own it can tell.
    bool is_idle() const noexcept {
        return phase.load(std::memory_order_relaxed) == Phase::idle &&
               saw_bytes.load(std::memory_order_relaxed);
    }

    bool claim_for_sweep() noexcept {
        uint8_t seen = ARMED;
        return claim.compare_exchange_strong(seen, OWNED, std::memory_order_acq_rel);
    }

    // The message waits for its answer from now on, which one caller of `take` gives.
    Turn begin_turn() noexcept {
        const uint64_t number = (turn.load(std::memory_order_relaxed) + 1) | 1;
        turn.store(number, std::memory_order_release);
        return {this, number};
    }
    Turn open_turn() noexcept { return {this, turn.load(std::memory_order_acquire)}; }

    // Whether bytes have come that no thread has looked at, and that epoll knows nothing of.
    bool holds_unseen() const noexcept {
        const Phase now = phase.load(std::memory_order_relaxed);
        return receives(now) && (tls.unread || (now == Phase::head && searched != filled));
    }

    void reset_message() noexcept {
        Message::reset();
        searched = 0;
    }

    // Chooses the message's id once, by what its head says.
    void identify() noexcept { Message::identify(reinterpret_cast<const char *>(buffer)); }
};

inline Connection *Turn::take() const noexcept {
    uint64_t open = number;
    const bool taken = connection && (open & 1) &&
                       connection->turn.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel);
    return taken ? connection : nullptr;
}

}  // namespace ksrv
