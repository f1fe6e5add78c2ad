// How Python learns that requests have ended: wake-ups that a thread defers until it has released the GIL, and the list
// of completions, requests that ended on a thread without the GIL.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "queue/request_queue.hpp"

namespace ksrv {

// Defers waking the waiters of an answered request until this thread calls `publish_all` without the GIL. Otherwise the
// waiters would wake only to wait for the GIL.
void publish_later(Request *request) noexcept;
void publish_all() noexcept;

// Requests that ended without the GIL, and whose end Python has not handled yet. The thread ksrv-completions fetches
// them.
struct Completions {
    std::mutex mutex;
    std::condition_variable some;
    Request *first = nullptr;
    std::atomic<bool> any{false};  // whether the list has requests; read without the mutex
    std::uint64_t wakes = 0;       // calls of `wake`

    void add(Request *request) noexcept;  // retains the request
    Request *fetch() noexcept;            // null if the list is empty; the caller must release the request
    void wait() noexcept;                 // until a request is added, or `wake` is called
    void wake() noexcept;
};

// The process-wide list. Never destroyed, because threads outlive exit.
Completions &completions() noexcept;

}  // namespace ksrv
