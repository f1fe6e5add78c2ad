// An event loop by a clock that stands until its program moves it.
//
// The loop has a separate thread, and runs only while the program is in `settle`: until nothing is left to do before
// time passes or a client sends. So a program goes step by step, and a minute takes no time. It replaces the C library's
// clock_gettime, the clock of everything here, and epoll_wait, where a loop waits: a program includes it once.

#pragma once

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

class DrivenLoop {
  public:
    // `run` is the loop's function, which returns once `stop` was called.
    DrivenLoop(std::function<void()> run, std::function<void()> stop) : stop_(std::move(stop)) {
        thread_ = std::thread([this, run] {
            current() = this;
            wait_for(true);
            run();
            std::lock_guard<std::mutex> guard(mutex_);
            runs_ = false;
            changed_.notify_all();
        });
    }
    ~DrivenLoop() {
        stop_();
        settle();
        thread_.join();
    }
    DrivenLoop(const DrivenLoop &) = delete;
    DrivenLoop &operator=(const DrivenLoop &) = delete;

    // Lets the loop run until it would wait.
    void settle() {
        std::unique_lock<std::mutex> lock(mutex_);
        runs_ = true;
        changed_.notify_all();
        while (runs_) changed_.wait(lock);
    }

    void settle_after(double seconds) {
        elapsed_ns().fetch_add(static_cast<int64_t>(seconds * 1e9));
        settle();
    }

    // Since the program began.
    static double seconds() { return static_cast<double>(elapsed_ns().load()) / 1e9; }

    static std::atomic<int64_t> &elapsed_ns() {
        static std::atomic<int64_t> elapsed{0};
        return elapsed;
    }

    // Of a thread that is a driven loop's; null of others.
    static DrivenLoop *&current() {
        static thread_local DrivenLoop *made = nullptr;
        return made;
    }

    // The loop would wait: the program continues.
    void rest() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            runs_ = false;
            changed_.notify_all();
        }
        wait_for(true);
    }

  private:
    void wait_for(bool runs) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (runs_ != runs) changed_.wait(lock);
    }

    const std::function<void()> stop_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool runs_ = false;
    std::thread thread_;
};

extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    if (clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    const int64_t elapsed = DrivenLoop::elapsed_ns().load();
    now->tv_sec = 1000 + elapsed / 1000000000;
    now->tv_nsec = elapsed % 1000000000;
    return 0;
}

extern "C" int epoll_wait(int epoll, epoll_event *events, int most, int timeout) {
    const auto look = [&] { return static_cast<int>(syscall(SYS_epoll_pwait, epoll, events, most, 0, nullptr, 8)); };
    const int found = look();
    if (found != 0 || timeout == 0) return found;
    if (DrivenLoop *loop = DrivenLoop::current()) loop->rest();
    return look();
}
