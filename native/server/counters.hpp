// What has happened in the HTTP server so far. Any thread counts, and any thread reads.

#pragma once

#include <atomic>
#include <cstdint>

namespace ksrv {

enum ServerCounter : int {
    SERVER_ACCEPTED,
    SERVER_INFER,          // infer requests that took the hot route
    SERVER_HEALTH,
    SERVER_DESCRIBED,      // GETs of a server's or model's description
    SERVER_APP,            // messages given to a thread of the app; twice where the body was asked for
    SERVER_ANSWERED,
    SERVER_TOO_SLOW,
    SERVER_BYTES_IN_FLIGHT,
    SERVER_QUEUE_FULL,
    SERVER_IDLE_CLOSED,
    SERVER_DISCONNECTED,       // the peer went before its answer was sent
    SERVER_ACCEPT_PAUSED,
    SERVER_FAST_PATH,      // infer requests that were queued without Python
    SERVER_RECYCLED,       // idle connections that made room for others
    SERVER_LOST_RECORDS,   // of the access log, which was not read in time
    SERVER_TLS_AGREED,     // handshakes from the beginning,
    SERVER_TLS_RESUMED,    // those of clients that went on with an earlier session,
    SERVER_TLS_REFUSED,    // and those that failed
    SERVER_FLOOD,          // connections that sent too many TLS records without data
    SERVER_PROXY_HEADER,   // connections whose header of the PROXY protocol was refused
    SERVER_STRAY,          // second answers to a message, which were not sent: faults of this program
    SERVER_COUNTERS,
};

// Statuses of answers that tell of an error: 400 to 599.
constexpr int LEAST_ERROR = 400, STATUSES = 200;

struct ServerCounts {
    std::atomic<uint64_t> counters[SERVER_COUNTERS] = {};
    std::atomic<uint64_t> errors[STATUSES] = {};  // answers by status, from LEAST_ERROR on

    void count(ServerCounter which) noexcept { counters[which].fetch_add(1, std::memory_order_relaxed); }

    void count_status(int status) noexcept {
        if (status >= LEAST_ERROR && status < LEAST_ERROR + STATUSES)
            errors[status - LEAST_ERROR].fetch_add(1, std::memory_order_relaxed);
    }
};

}  // namespace ksrv
