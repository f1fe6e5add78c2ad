// Decides which thread of an event loop leads, which thread is in Python, and who replaces them.
//
// Strategy: one thread leads: it waits at the sockets, and takes ready requests into Python itself, which saves a
// switch of threads. While it is in Python a follower watches it, and takes the lead if it does not return soon, so
// that a thread is always at the sockets. A handler that hangs in Python would delay all later requests. Therefore,
// if one request keeps a thread for long, another thread enters Python in its place. Only the last thread stays at the
// sockets.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"

namespace ksrv {

class PythonTurn {
  public:
    // The work for which threads enter Python.
    struct Work {
        virtual bool wants_python() const noexcept = 0;
        // Works until nothing is left. False if there was no work.
        virtual bool work_in_python() noexcept = 0;

      protected:
        ~Work() = default;
    };

    PythonTurn(Work *work, int threads) noexcept : work_(work), threads_(threads) {}

    bool leads(int index) const noexcept { return leader_.load() == index; }
    bool is_in_python() const noexcept { return in_python_.load() != NOBODY; }

    // Enters Python with thread `index`, if there is work and no other thread is in Python.
    void serve(int index) noexcept;
    // Waits until thread `index` leads, or `stop` was called.
    void follow(int index) noexcept;
    void stop() noexcept;

    // Called before the next request in Python. Returns how long the previous request took.
    uint64_t begin_request(uint64_t now) noexcept {
        const uint64_t before = request_since_ns_.exchange(now, std::memory_order_relaxed);
        return now > before ? now - before : 0;
    }

  private:
    static constexpr int NOBODY = -1;
    // The leader is replaced if a request, or a whole visit to Python, takes this long.
    static constexpr uint64_t LEADER_REQUEST_NS = 500'000, LEADER_VISIT_NS = 2'000'000;
    static constexpr uint64_t STUCK_NS = 20'000'000;  // If a request takes this long, another thread enters Python.
    static constexpr uint64_t POLL_AFTER_VISIT_NS = 20'000'000;  // How long the leader is polled after a visit.
    static constexpr uint64_t POLL_INTERVAL_NS = 2'000'000;  // Between two looks at the leader.
    static constexpr uint64_t FOLLOWER_SLEEP_NS = 1'000'000'000;  // Longest sleep of a follower.

    static bool late(uint64_t since, uint64_t allowed) noexcept {
        const uint64_t now = unsigned_now_ns();
        return now > since && now - since >= allowed;
    }
    bool visit(int index, uint64_t since) noexcept;
    void leave_watch(int index) noexcept;

    Work *const work_;
    const int threads_;
    std::atomic<bool> stopping_{false};
    std::atomic<int> leader_{0};
    std::atomic<int> serving_{NOBODY};    // the thread that may run requests in Python; claimed by `serve`
    // The thread of the latest visit, until it leaves. Differs from `serving_` only while one thread replaces another.
    std::atomic<int> in_python_{NOBODY};
    std::atomic<int> away_{0};            // threads in Python, including threads that hang
    std::atomic<uint64_t> visit_since_ns_{0}, request_since_ns_{0};  // when the last visit and its last request began
    std::mutex mutex_;
    std::atomic<int> watching_{NOBODY};       // the only follower that watches the leader
    std::atomic<bool> watcher_rests_{false};  // the watcher sleeps until it is woken
    MonotonicCondition watch_, follow_;       // of the watcher, and of the other followers
};

}  // namespace ksrv
