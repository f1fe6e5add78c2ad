// How long a connection may take for what it waits for. Read by any thread, and never changed once connections come.
// HttpServer::expire (server/events.cpp) ends the connections that take longer; grpc/deadlines.cpp has those of HTTP/2.

#pragma once

#include <algorithm>
#include <cstdint>

#include "http/connection.hpp"

namespace ksrv {

struct TimeLimits {
    uint64_t head_ns = 10000000000u;      // a head must be complete by then
    uint64_t grace_ns = 10000000000u;     // bodies and answers: the rate counts from here on
    uint64_t rate = 4096;                 // bytes per second, received or taken by the peer
    uint64_t transfer_s = 300;            // behind the grace, for a body or an answer of any size
    uint64_t idle_ns = 75000000000u;      // between messages; 0: every answer closes
    uint64_t stop_idle_ns = 2000000000u;  // the same while draining, and of a connection at its end
    uint64_t linger_ns = 2000000000u;     // for the peer to take an answer that closes
    uint64_t memory_wait_ns = 1000000000u;  // waiting for bytes in flight, before 503

    static constexpr uint64_t PRERESERVED_NS = 1000000000u;  // that a body may be counted before it comes
    static constexpr uint64_t UNSEEN_NS = 500000000u;  // that bytes wait which have come, where no event tells of them

    // Bytes per second that are asked of a transfer of so many bytes.
    uint64_t least_rate(uint64_t whole) const noexcept {
        const uint64_t least = whole / (transfer_s ? transfer_s : 1);
        return least > rate ? least : rate ? rate : 1;
    }

    // Whether a peer takes an answer fast enough that has taken so many bytes of it in so long.
    bool keeps_up(uint64_t bytes, uint64_t elapsed_ns, uint64_t whole) const noexcept {
        return bytes >= elapsed_ns / 1000000u * least_rate(whole) / 1000u;
    }

    // When a connection is looked at next that its owner arms now.
    uint64_t deadline(const Connection &connection, uint64_t now, bool draining) const noexcept {
        if (connection.holds_unseen()) return now + UNSEEN_NS;
        switch (connection.phase.load(std::memory_order_relaxed)) {
        case Phase::idle: {
            const uint64_t timeout = !connection.saw_bytes ? head_ns
                                     : draining            ? std::min(stop_idle_ns, idle_ns)
                                                           : idle_ns;
            // At its end a connection is closed only if it is silent, so that a busy one is ended by an answer.
            const uint64_t end =
                connection.ends_ns == UINT64_MAX ? UINT64_MAX : std::max(connection.ends_ns, now + stop_idle_ns);
            return std::min(now + timeout, end);
        }
        case Phase::head:
            return connection.message_ns + head_ns;
        case Phase::body: {
            const IncomingBody &body = connection.body;
            if (body.prereserved) return connection.stage_ns + PRERESERVED_NS;
            return connection.stage_ns + grace_ns +
                   body.got * 1000000u / least_rate(body.announced(connection.head)) * 1000u;
        }
        case Phase::send:
            return connection.stage_ns + grace_ns;
        case Phase::linger:
            return connection.stage_ns + linger_ns;
        default:  // the PROXY protocol's header, and the handshake
            return connection.stage_ns + head_ns;
        }
    }
};

}  // namespace ksrv
