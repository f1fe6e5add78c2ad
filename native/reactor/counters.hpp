// The counters of a worker's HTTP and gRPC servers. Any thread counts, and any thread reads.
//
// To make a counter a metric, add a field with its name to `Traffic` in ksrv/observe/traffic.py.

#pragma once

#include <atomic>
#include <cstdint>

namespace ksrv {

// A row for each counter. The refusals are the first rows: their names are reasons of the metric
// `ksrv_refused_requests_total`.
#define KSRV_REFUSALS(row)                                                         \
    row(too_slow)                                                                  \
    row(bytes_in_flight)                                                           \
    row(queue_full)                                                                \
    row(too_large)                                                                 \
    row(calls)              /* gRPC: too many calls, messages or answers wait */   \
    row(flood)              /* too many frames without data */                     \
    row(tls_refused)        /* handshakes that failed */                           \
    row(proxy_header)       /* connections with a refused PROXY protocol header */

#define KSRV_OTHER_COUNTERS(row)                                                   \
    row(accepted)           /* HTTP connections */                                 \
    row(recycled)           /* idle connections that were closed for others */     \
    row(accept_pauses)                                                             \
    row(lacked_descriptors) /* accept pauses because no descriptor was free */     \
    row(lost_lines)         /* access log lines that were not read in time */      \
    row(answered)           /* HTTP messages */                                    \
    row(infer)              /* infer requests on the native route */               \
    row(fast_path)          /* infer requests that were queued without Python */   \
    row(described)          /* GETs of a description of the server or of a model */\
    row(app)                /* messages given to a thread of the app; twice if it asked for the body */ \
    row(late)               /* calls that were answered at their deadline without Python */ \
    row(tls_agreed)         /* full handshakes */                                  \
    row(tls_resumed)        /* handshakes that resumed a session */                \
    row(stray)              /* second answers to a message, which were not sent: bugs in this program */

#define KSRV_ROW(name) name,
enum class ServerCounter : int { KSRV_REFUSALS(KSRV_ROW) KSRV_OTHER_COUNTERS(KSRV_ROW) COUNT };
#undef KSRV_ROW

#define KSRV_ROW(name) #name,
inline constexpr const char *COUNTER_NAMES[] = {KSRV_REFUSALS(KSRV_ROW) KSRV_OTHER_COUNTERS(KSRV_ROW)};
#undef KSRV_ROW

#define KSRV_ROW(name) +1
inline constexpr int REFUSALS = 0 KSRV_REFUSALS(KSRV_ROW);  // the number of refusals
#undef KSRV_ROW

// Statuses of error answers: 400 to 599.
constexpr int LEAST_ERROR = 400, STATUSES = 200;

class ServerCounters {
  public:
    void count(ServerCounter which) noexcept {
        counts_[static_cast<int>(which)].fetch_add(1, std::memory_order_relaxed);
    }

    void count_status(int status) noexcept {
        if (status >= LEAST_ERROR && status < LEAST_ERROR + STATUSES)
            errors_[status - LEAST_ERROR].fetch_add(1, std::memory_order_relaxed);
    }

    uint64_t counted(ServerCounter which) const noexcept { return counts_[static_cast<int>(which)].load(); }
    uint64_t errors(int status) const noexcept { return errors_[status - LEAST_ERROR].load(); }

  private:
    std::atomic<uint64_t> counts_[static_cast<int>(ServerCounter::COUNT)] = {};
    std::atomic<uint64_t> errors_[STATUSES] = {};  // by status, from LEAST_ERROR
};

}  // namespace ksrv
