// A condition variable whose timed waits use the monotonic clock, with every version of glibc.
//
// std::condition_variable needs pthread_cond_clockwait for this, which exists since glibc 2.30. Built for an older
// version it waits on the wall clock, and a step of that clock would delay deadlines.

#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>
#include <mutex>

#include "base/clock.hpp"

namespace ksrv {

class MonotonicCondition {
  public:
    MonotonicCondition() noexcept {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition_, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    ~MonotonicCondition() { pthread_cond_destroy(&condition_); }
    MonotonicCondition(const MonotonicCondition &) = delete;
    MonotonicCondition &operator=(const MonotonicCondition &) = delete;

    void notify_one() noexcept { pthread_cond_signal(&condition_); }
    void notify_all() noexcept { pthread_cond_broadcast(&condition_); }

    void wait(std::unique_lock<std::mutex> &lock) noexcept {
        pthread_cond_wait(&condition_, lock.mutex()->native_handle());
    }

    // Returns at the latest when CLOCK_MONOTONIC reaches `until_ns`, or earlier for any reason. NEVER has no limit.
    void wait_until(std::unique_lock<std::mutex> &lock, std::int64_t until_ns) noexcept {
        if (until_ns == NEVER) return wait(lock);
        constexpr std::int64_t SECOND_NS = 1'000'000'000;
        timespec until{};
        until.tv_sec = until_ns / SECOND_NS;
        until.tv_nsec = until_ns % SECOND_NS;
        pthread_cond_timedwait(&condition_, lock.mutex()->native_handle(), &until);
    }

  private:
    pthread_cond_t condition_;
};

}  // namespace ksrv
