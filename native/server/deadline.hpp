// When the sweep must look at a connection. HttpServer::expire (server/events.cpp) closes connections that exceed their
// limits.

#pragma once

#include <algorithm>
#include <cstdint>

#include "http/connection.hpp"
#include "reactor/connection_limits.hpp"

namespace ksrv {

constexpr uint64_t STOP_IDLE_NS = 2'000'000'000;    // Longest silence while draining, or when the connection must end.
constexpr uint64_t LINGER_NS = 2'000'000'000;       // How long the peer may take to receive the answer that closes.
constexpr uint64_t PRERESERVED_NS = 1'000'000'000;  // Longest time that missing bytes stay counted.
constexpr uint64_t UNSEEN_NS = 500'000'000;         // Longest wait of received bytes that epoll does not report.

// The deadline of a connection that is armed at `now`.
inline uint64_t deadline(const Connection &connection, const ConnectionLimits &limits, uint64_t now,
                         bool draining) noexcept {
    if (connection.holds_unseen()) return now + UNSEEN_NS;
    switch (connection.phase.load(std::memory_order_relaxed)) {
    case Phase::idle: {
        const uint64_t timeout = !connection.saw_bytes ? limits.head_ns
                                 : draining            ? std::min(STOP_IDLE_NS, limits.idle_ns)
                                                       : limits.idle_ns;
        // At its maximum age, an idle connection is closed only if it stays silent for STOP_IDLE_NS. A busy connection
        // is closed after an answer.
        const uint64_t end =
            connection.ends_ns == UINT64_MAX ? UINT64_MAX : std::max(connection.ends_ns, now + STOP_IDLE_NS);
        return std::min(now + timeout, end);
    }
    case Phase::head:
        return connection.message_ns + limits.head_ns;
    case Phase::body: {
        const IncomingBody &body = connection.body;
        if (body.prereserved) return connection.stage_ns + PRERESERVED_NS;
        // The received bytes earn time at the minimum rate.
        return connection.stage_ns + limits.grace_ns +
               body.got * 1'000'000u / limits.least_rate(body.announced(connection.head)) * 1000u;
    }
    case Phase::send:
        return connection.stage_ns + limits.grace_ns;
    case Phase::linger:
        return connection.stage_ns + LINGER_NS;
    default:  // PROXY protocol header, and TLS handshake
        return connection.stage_ns + limits.head_ns;
    }
}

}  // namespace ksrv
