// Which thread of an event loop leads it, which is in Python, and who takes their places.
//
// Strategy: one thread leads: it waits at the sockets. It takes requests that are ready into Python itself, which saves a change of
// thread. While it is there, one follower watches it, and takes the lead when it does not come back soon; so a thread is always
// with the sockets. A handler that hangs in Python would keep every later request waiting: where one request has kept its thread
// for long, another thread goes into Python in its place, and only the last one stays with the sockets.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"

namespace ksrv {

class PythonTurn {
  public:
    // What threads go into Python for.
    struct Work {
        virtual bool wants_python() const noexcept = 0;
        // Until nothing is left. False: it found nothing to do.
        virtual bool work_in_python() noexcept = 0;

      protected:
        ~Work() = default;
    };

    PythonTurn(Work *work, int threads) noexcept : work_(work), threads_(threads) {}

    bool leads(int index) const noexcept { return leader_.load() == index; }
    bool is_in_python() const noexcept { return in_python_.load() != NOBODY; }

    // Goes into Python with thread `index`, if there is work and nobody else has it.
    void serve(int index) noexcept;
    // Waits until thread `index` leads, or `stop` was called.
    void follow(int index) noexcept;
    void stop() noexcept;

    // The thread in Python takes its next request. Returns for how long it was with the one before.
    uint64_t begin_request(uint64_t now) noexcept {
        const uint64_t before = request_since_ns_.exchange(now, std::memory_order_relaxed);
        return now > before ? now - before : 0;
    }

  private:
    static constexpr int NOBODY = -1;
    // A leader has left when one request keeps it in Python for so long, or all that it took along.
    static constexpr uint64_t REQUEST_NS = 500000u, VISIT_NS = 2000000u;
    static constexpr uint64_t STUCK_NS = 20000000u;  // another one serves when one request takes so long
    static constexpr uint64_t WATCHED_NS = 20000000u;  // that the leader is looked at behind a visit to Python
    static constexpr uint64_t LOOK_NS = 2000000u;      // between two looks at it
    static constexpr uint64_t REST_NS = 1000000000u;   // of a follower that is not woken

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
    std::atomic<int> serving_{NOBODY};    // the thread that takes requests into Python
    std::atomic<int> in_python_{NOBODY};  // the one that is there
    std::atomic<int> away_{0};            // threads that are there, those that hang included
    std::atomic<uint64_t> visit_since_ns_{0}, request_since_ns_{0};
    std::mutex mutex_;
    std::atomic<int> watching_{NOBODY};       // the one follower that watches the leader
    std::atomic<bool> watcher_rests_{false};  // until it is woken
    MonotonicCondition watch_, follow_;       // of the watcher, and of the others
};

}  // namespace ksrv
