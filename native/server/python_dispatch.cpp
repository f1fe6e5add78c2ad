// The thread that takes requests into Python, and its replacement while a handler keeps it.
//
// Strategy: one thread at a time serves: it takes requests out of the run queue into Python until the
// queue is empty. Normally it is the leader, which saves a change of thread; the follower takes the
// lead meanwhile and never enters Python while the first one is there, so that a thread is always
// with the sockets. A handler that hangs on the serving thread would then keep every request waiting.
// So threads beyond the I/O threads stand by: where one request has kept the serving thread for long,
// one of them serves in its place.

#include "base/python_call.hpp"
#include "server/server.hpp"

namespace ksrv {

// A thread that finds no other one serving serves. The look after leaving catches requests that came between
// the last look and the leaving.
void HttpServer::serve(int index) noexcept {
    while (to_run_.load() != 0) {
        int serving = serving_.load();
        if (serving != NOBODY && !late(request_since_.load(), STUCK_NS)) return;
        if (config.threads > 1 && away_.load() + 1 >= config.threads) {
            call_relief();  // this thread is the last one with the sockets
            return;
        }
        request_since_.store(unsigned_now_ns());
        if (!serving_.compare_exchange_strong(serving, index)) return;
        away_.fetch_add(1);
        visit_python(index);
        away_.fetch_sub(1);
        leave_python(index);
    }
}

void HttpServer::visit_python(int index) noexcept {
    const uint64_t now = unsigned_now_ns();
    python_since_.store(now);
    request_since_.store(now);
    in_python_.store(index);
    if (resting_.load() != 0) {
        std::lock_guard<std::mutex> guard(follow_mutex_);
        follow_.notify_one();
    }
    call_python([this] { serve_python_(owner_); });
}

// Another thread may have taken this one's place.
void HttpServer::leave_python(int index) noexcept {
    int mine = index;
    in_python_.compare_exchange_strong(mine, NOBODY);
    mine = index;
    serving_.compare_exchange_strong(mine, NOBODY);
}

void HttpServer::call_relief() noexcept {
    std::lock_guard<std::mutex> guard(relief_mutex_);
    relief_called_ = true;
    relief_.notify_one();
}

void HttpServer::stand_by(int index) noexcept {
    std::unique_lock<std::mutex> lock(relief_mutex_);
    while (!stopping_.load(std::memory_order_acquire)) {
        if (!relief_called_) {
            relief_.wait(lock);
            continue;
        }
        relief_called_ = false;
        lock.unlock();
        while (to_run_.load() != 0) {
            serving_.store(index);
            visit_python(index);
            leave_python(index);
        }
        lock.lock();
    }
}

// Watches the leader and takes its place when it has been in Python for too long. While requests
// come, that is a look every two milliseconds, so that entering Python costs no wake-up; else
// the follower rests until the leader enters Python.
void HttpServer::follow(int index) noexcept {
    const auto after = [](uint64_t ns) { return static_cast<int64_t>(unsigned_now_ns() + ns); };
    std::unique_lock<std::mutex> lock(follow_mutex_);
    while (!stopping_.load(std::memory_order_acquire)) {
        int leader = leader_.load();
        if (leader == index) return;
        const uint64_t entered = python_since_.load();
        if (in_python_.load() == leader &&
            (late(request_since_.load(), REQUEST_NS) || late(entered, VISIT_NS))) {
            if (leader_.compare_exchange_strong(leader, index)) return;
            continue;
        }
        if (in_python_.load() == NOBODY && late(entered, WATCHED_NS)) {
            resting_.fetch_add(1);
            if (in_python_.load() == NOBODY) follow_.wait_until(lock, after(1000000000));
            resting_.fetch_sub(1);
        } else {
            follow_.wait_until(lock, after(2000000));
        }
    }
}

// A request that its client still wants answered; null where none waits.
Connection *HttpServer::next_to_run() noexcept {
    const uint64_t now = unsigned_now_ns();
    if (now - request_since_.exchange(now, std::memory_order_relaxed) > GATHER_NS) send_gathered();
    for (;;) {
        Connection *connection;
        {
            std::lock_guard<std::mutex> guard(run_mutex_);
            connection = run_first_;
            if (!connection) return nullptr;
            run_first_ = connection->next;
            if (!run_first_) run_last_ = nullptr;
            connection->next = nullptr;
            to_run_.fetch_sub(1, std::memory_order_relaxed);
        }
        if (!drop_cut(connection)) return connection;
    }
}

}  // namespace ksrv
