// Deferred wake-ups and the list of completions, for the Python side of the queue.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "queue/request_queue.hpp"

namespace ksrv {

// Defers waking the waiters of an answered request until this thread calls `publish_all` without the GIL.
void publish_later(Request *request) noexcept;
void publish_all() noexcept;

// Requests that ended without the GIL, and of which Python does not know yet.
struct Completions {
    std::mutex mutex;
    std::condition_variable some;
    Request *first = nullptr;
    std::atomic<bool> any{false};
    std::uint64_t wakes = 0;

    void add(Request *request) noexcept;
    Request *fetch() noexcept;
    void wait() noexcept;
    void wake() noexcept;
};

Completions &completions() noexcept;

}  // namespace ksrv
