#include "queue/request.hpp"

#include <errno.h>
#include <time.h>

namespace ksrv {

Waited wait_done(Request *request, std::int64_t until_ns) noexcept {
    if (request->done.load(std::memory_order_acquire)) return WAIT_DONE;
    // `publish` stores `done` and then loads `waiters`; this thread adds to `waiters` and then loads `done`. So at
    // least one of the threads sees the other, and no wake-up is lost.
    request->waiters.fetch_add(1, std::memory_order_seq_cst);
    Waited waited = WAIT_DONE;
    while (request->done.load(std::memory_order_seq_cst) == 0) {
        timespec until{};
        if (until_ns != NEVER) {
            until.tv_sec = until_ns / 1'000'000'000;
            until.tv_nsec = until_ns % 1'000'000'000;
        }
        // FUTEX_WAIT_BITSET takes an absolute time of the monotonic clock.
        const long rc = syscall(SYS_futex, reinterpret_cast<std::int32_t *>(&request->done),
                                FUTEX_WAIT_BITSET_PRIVATE, 0,
                                until_ns == NEVER ? nullptr : &until, nullptr,
                                FUTEX_BITSET_MATCH_ANY);
        if (rc == 0 || errno == EAGAIN) continue;
        if (errno == ETIMEDOUT) {
            waited = request->done.load(std::memory_order_acquire) ? WAIT_DONE : WAIT_TIMEOUT;
            break;
        }
        if (errno == EINTR) {
            waited = request->done.load(std::memory_order_acquire) ? WAIT_DONE : WAIT_INTERRUPTED;
            break;
        }
    }
    request->waiters.fetch_sub(1, std::memory_order_relaxed);
    return waited;
}

}  // namespace ksrv
