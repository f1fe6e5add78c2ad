#include "reactor/python_turn.hpp"

namespace ksrv {

// Enters Python if no other thread is there. The loop checks again after leaving, because requests may have arrived
// between the last check and leaving. A visit without work ends the loop, so that the thread does not spin.
void PythonTurn::serve(int index) noexcept {
    uint64_t since = 0;  // when the first visit began
    for (bool worked = true; worked && work_->wants_python();) {
        int serving = serving_.load();
        // Another thread is in Python, and its request is not stuck.
        if (serving != NOBODY && !late(request_since_ns_.load(), STUCK_NS)) return;
        if (threads_ > 1 && away_.load() + 1 >= threads_) return;  // this thread is the last at the sockets
        const uint64_t now = unsigned_now_ns();
        if (!since) since = now;
        request_since_ns_.store(now);
        if (!serving_.compare_exchange_strong(serving, index)) return;
        away_.fetch_add(1);
        worked = visit(index, since);
        away_.fetch_sub(1);
        int mine = index;  // another thread may have replaced this thread
        in_python_.compare_exchange_strong(mine, NOBODY);
        mine = index;
        serving_.compare_exchange_strong(mine, NOBODY);
    }
}

// `since`: when the thread left the sockets. It stays the same for consecutive visits.
bool PythonTurn::visit(int index, uint64_t since) noexcept {
    visit_since_ns_.store(since);
    // Stored before `watcher_rests_` is read. `follow` sets that flag and then reads `in_python_`, so one of the two
    // threads sees the other, and the watcher does not sleep through this visit.
    in_python_.store(index);
    if (watcher_rests_.load()) {
        std::lock_guard<std::mutex> guard(mutex_);
        watch_.notify_one();
    }
    return work_->work_in_python();
}

// A watcher that has become the leader gives up watching.
void PythonTurn::leave_watch(int index) noexcept {
    int mine = index;
    if (watching_.compare_exchange_strong(mine, NOBODY)) follow_.notify_one();
}

// The watcher replaces a leader that has been in Python for too long. While requests arrive, the watcher polls every
// two milliseconds, so that entering Python needs no wake-up. Otherwise it sleeps until the leader enters Python and
// wakes it.
void PythonTurn::follow(int index) noexcept {
    const auto after = [](uint64_t ns) { return static_cast<int64_t>(unsigned_now_ns() + ns); };
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_.load(std::memory_order_acquire)) {
        int leader = leader_.load();
        if (leader == index) {
            leave_watch(index);
            return;
        }
        const uint64_t entered = visit_since_ns_.load();
        if (in_python_.load() == leader &&
            (late(request_since_ns_.load(), LEADER_REQUEST_NS) || late(entered, LEADER_VISIT_NS))) {
            leader_.compare_exchange_strong(leader, index);
            continue;
        }
        const bool watcher = watching_.load() == NOBODY || watching_.load() == index;
        if (!watcher) {
            follow_.wait_until(lock, after(FOLLOWER_SLEEP_NS));
            continue;
        }
        watching_.store(index);
        if (in_python_.load() != NOBODY || !late(entered, POLL_AFTER_VISIT_NS)) {
            watch_.wait_until(lock, after(POLL_INTERVAL_NS));
            continue;
        }
        watcher_rests_.store(true);
        if (in_python_.load() == NOBODY) watch_.wait_until(lock, after(FOLLOWER_SLEEP_NS));
        watcher_rests_.store(false);
    }
}

void PythonTurn::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    std::lock_guard<std::mutex> guard(mutex_);
    follow_.notify_all();
    watch_.notify_all();
}

}  // namespace ksrv
