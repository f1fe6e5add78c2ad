#include "queue/deadline_timer.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

namespace ksrv {

namespace {

constexpr std::int64_t RETRY_NS = 1'000'000;  // after memory was short

}  // namespace

bool Timer::watch(Queue *queue) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    try {
        queues_.push_back(queue);
        if (!running_) start_thread();
    } catch (const std::exception &) {
        queues_.erase(std::remove(queues_.begin(), queues_.end(), queue), queues_.end());
        return false;
    }
    retain(queue);
    return true;
}

void Timer::forget(Queue *queue) noexcept {
    {
        std::lock_guard<std::mutex> guard(mutex_);
        const auto found = std::find(queues_.begin(), queues_.end(), queue);
        if (found == queues_.end()) return;
        queues_.erase(found);
    }
    release(queue);
}

void Timer::expect(std::int64_t deadline) noexcept {
    if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> guard(mutex_);
    if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
    wake_at_.store(deadline, std::memory_order_relaxed);
    sooner_.notify_one();
}

void Timer::after_fork_in_child() noexcept {
    running_ = false;
    queues_.clear();
    wake_at_.store(NEVER);
    new (&sooner_) MonotonicCondition;  // the parent's timer thread may have waited on the condition at the fork
    mutex_.unlock();
}

void Timer::start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are handled by Python's main thread
    try {
        std::thread([this] { run(); }).detach();
        running_ = true;
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Timer::run() noexcept {
    std::vector<Queue *> due;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        const std::int64_t wake = wake_at_.load(std::memory_order_relaxed);
        const std::int64_t now = now_ns();
        if (wake > now) {
            sooner_.wait_until(lock, wake);
            continue;
        }
        try {
            due.assign(queues_.begin(), queues_.end());
        } catch (const std::bad_alloc &) {  // memory may be available again later
            wake_at_.store(now + RETRY_NS, std::memory_order_relaxed);
            continue;
        }
        // Store NEVER before the walk: a push that the walk misses locks its queue's mutex after the walk did, so it
        // sees NEVER here and reports its deadline.
        wake_at_.store(NEVER, std::memory_order_relaxed);
        for (Queue *queue : due) retain(queue);
        lock.unlock();
        std::int64_t next = NEVER;
        for (Queue *queue : due) {
            next = std::min(next, queue->expire(now));
            release(queue);
        }
        lock.lock();
        if (next < wake_at_.load(std::memory_order_relaxed))
            wake_at_.store(next, std::memory_order_relaxed);
    }
}

Timer &process_timer() noexcept {
    static Timer *timer = [] {
        static Timer *made = new Timer;
        pthread_atfork([] { made->before_fork(); }, [] { made->after_fork_in_parent(); },
                       [] { made->after_fork_in_child(); });
        return made;
    }();
    return *timer;
}

}  // namespace ksrv
