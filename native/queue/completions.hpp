// For the queue's Python side: waking waiters without the GIL, and the list of completions.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "queue/request_queue.hpp"

namespace ksrv {

// Wakes the waiters of an answered request once this thread has let go of the GIL and calls `publish_all`.
void publish_later(Request *request) noexcept;
void publish_all() noexcept;

// Entries that ended without the GIL and whose Python side does not know it yet.
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
