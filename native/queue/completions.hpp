// What the Python face of the queue adds to it: waking waiters without the GIL, and noticing ends.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "queue/request_queue.hpp"

namespace ksrv {

// Answered entries whose waiters this thread wakes once it has let go of the GIL.
inline thread_local std::vector<Entry *> to_publish;

inline void publish_all() noexcept {
    for (Entry *entry : to_publish) {
        publish(entry);
        release(entry);
    }
    to_publish.clear();
}
inline void publish_later(Entry *entry) noexcept {
    retain(entry);
    try {
        to_publish.push_back(entry);
    } catch (const std::bad_alloc &) {
        publish(entry);
        release(entry);
    }
}

// Entries that ended without the GIL and whose Python side does not know it yet.
struct Notices {
    std::mutex mutex;
    std::condition_variable some;
    Entry *first = nullptr;
    std::atomic<bool> any{false};
    std::uint64_t wakes = 0;

    void add(Entry *entry) noexcept {
        retain(entry);
        std::lock_guard<std::mutex> guard(mutex);
        entry->next = first;
        first = entry;
        any.store(true, std::memory_order_release);
        some.notify_one();
    }
    Entry *fetch() noexcept {
        if (!any.load(std::memory_order_acquire)) return nullptr;
        std::lock_guard<std::mutex> guard(mutex);
        Entry *entry = first;
        if (entry != nullptr) first = entry->next;
        if (first == nullptr) any.store(false, std::memory_order_release);
        if (entry != nullptr) entry->next = nullptr;
        return entry;
    }
    void wait() noexcept {
        std::unique_lock<std::mutex> lock(mutex);
        const std::uint64_t before = wakes;
        while (first == nullptr && wakes == before) some.wait(lock);
    }
    void wake() noexcept {
        std::lock_guard<std::mutex> guard(mutex);
        ++wakes;
        some.notify_all();
    }
};
inline Notices &notices() noexcept {
    static Notices *made = new Notices;
    return *made;
}

}  // namespace ksrv
