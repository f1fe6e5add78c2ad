// Time limits of a connection. Read by any thread, and constant once connections arrive. HttpServer::expire
// (server/events.cpp) closes HTTP/1.1 connections that exceed them, grpc/deadlines.cpp HTTP/2 connections.

#pragma once

#include <algorithm>
#include <cstdint>

#include "http/connection.hpp"

namespace ksrv {

struct TimeLimits {
    uint64_t head_ns = 10'000'000'000;        // for receiving a head
    uint64_t grace_ns = 10'000'000'000;       // for bodies and answers, before the rate is enforced
    uint64_t rate = 4096;                     // minimum bytes per second, received or read by the peer
    uint64_t transfer_s = 300;                // after the grace period, for a body or an answer of any size
    uint64_t idle_ns = 75'000'000'000;        // between messages; 0: close after every answer
    uint64_t stop_idle_ns = 2'000'000'000;    // between messages while draining, or when the connection must end
    uint64_t linger_ns = 2'000'000'000;       // for the peer to receive the answer that closes
    uint64_t memory_wait_ns = 1'000'000'000;  // for waiting for bytes in flight, before 503

    static constexpr uint64_t PRERESERVED_NS = 1'000'000'000;  // Longest time that missing bytes stay counted.
    static constexpr uint64_t UNSEEN_NS = 500'000'000;  // Longest wait of received bytes that epoll does not report.

    // The minimum rate, in bytes per second, of a transfer of `whole` bytes.
    uint64_t least_rate(uint64_t whole) const noexcept {
        const uint64_t least = whole / (transfer_s ? transfer_s : 1);
        return least > rate ? least : rate ? rate : 1;
    }

    // Whether a peer that has read `bytes` in `elapsed_ns` reads an answer fast enough.
    bool keeps_up(uint64_t bytes, uint64_t elapsed_ns, uint64_t whole) const noexcept {
        return bytes >= elapsed_ns / 1'000'000u * least_rate(whole) / 1000u;
    }

    // When the sweep must look at a connection that is armed now.
    uint64_t deadline(const Connection &connection, uint64_t now, bool draining) const noexcept {
        if (connection.holds_unseen()) return now + UNSEEN_NS;
        switch (connection.phase.load(std::memory_order_relaxed)) {
        case Phase::idle: {
            const uint64_t timeout = !connection.saw_bytes ? head_ns
                                     : draining            ? std::min(stop_idle_ns, idle_ns)
                                                           : idle_ns;
            // When it must end, an idle connection is closed only if it stays silent. A busy connection ends with an
            // answer.
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
                   body.got * 1'000'000u / least_rate(body.announced(connection.head)) * 1000u;
        }
        case Phase::send:
            return connection.stage_ns + grace_ns;
        case Phase::linger:
            return connection.stage_ns + linger_ns;
        default:  // PROXY protocol header, and TLS handshake
            return connection.stage_ns + head_ns;
        }
    }
};

}  // namespace ksrv
