// Assertions that a thread owns some data, or holds a mutex. Builds for sanitizers and fuzzers abort if an assertion is
// false. Other builds contain no assertions.

#pragma once

#ifdef KSRV_CHECKS_PHASES

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace ksrv {

inline void fail_unless(bool holds, const char *fault) noexcept {
    if (holds) return;
    std::fprintf(stderr, "assertion: %s\n", fault);
    abort();
}

// The thread that may use some data at the moment: call `begin` and `end` around the use, and `check` in the code that
// uses the data. A thread is identified by the address of a thread_local variable.
class OwnerThread {
  public:
    void begin() noexcept { fail_unless(owner_.exchange(self()) == nullptr, "two threads own it"); }
    void end() noexcept { owner_.store(nullptr); }
    void check() const noexcept { fail_unless(owner_.load() == self(), "the thread does not own it"); }

  private:
    static const void *self() noexcept {
        static thread_local const char mark = 0;
        return &mark;
    }
    std::atomic<const void *> owner_{nullptr};
};

}  // namespace ksrv

#define ASSERT_OWNED(owner_thread) (owner_thread).check()
#define ASSERT_LOCKED(mutex) \
    ksrv::fail_unless(pthread_mutex_trylock((mutex).native_handle()) == EBUSY, "the mutex is not locked")

#else

namespace ksrv {

struct OwnerThread {
    void begin() noexcept {}
    void end() noexcept {}
};

}  // namespace ksrv

#define ASSERT_OWNED(owner_thread) void()
#define ASSERT_LOCKED(mutex) void()

#endif
