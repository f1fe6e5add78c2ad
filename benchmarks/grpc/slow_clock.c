// A monotonic clock that passes SLOWNESS times slower, for programs under valgrind, which slows them as much.
//
//     cc -O2 -shared -fPIC slow_clock.c -o slow_clock.so
//     LD_PRELOAD=./slow_clock.so valgrind --tool=callgrind ...
//
// Without it a server measures its handlers as slow and its turns as long, and takes other ways than it does outside of valgrind.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOWNESS 60
#define SECOND 1000000000ll

static int64_t nanoseconds(const struct timespec *time) { return time->tv_sec * SECOND + time->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    const int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_MONOTONIC) *now = timespec_of(nanoseconds(now) / SLOWNESS);
    return failed;
}

static struct timespec real(clockid_t clock, const struct timespec *until) {
    return clock == CLOCK_MONOTONIC ? timespec_of(nanoseconds(until) * SLOWNESS) : *until;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    const struct timespec at = real(clock, until);
    return next(condition, mutex, clock, &at);
}

// Of Python, whose conditions wait by the monotonic clock.
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    const struct timespec at = real(CLOCK_MONOTONIC, until);
    return next(condition, mutex, &at);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    static int (*next)(sem_t *, clockid_t, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "sem_clockwait");
    const struct timespec at = real(clock, until);
    return next(semaphore, clock, &at);
}
