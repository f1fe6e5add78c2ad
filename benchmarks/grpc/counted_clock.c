// A monotonic clock that advances by half a microsecond each time it is read, for programs under valgrind.
//
//     cc -O2 -shared -fPIC counted_clock.c -o counted_clock.so
//     COUNTED_CLOCK=FILE LD_PRELOAD=./counted_clock.so valgrind --tool=callgrind ...
//
// Valgrind slows a program down some sixty times, and a busy machine slows it further. By the machine's clock a server
// would believe that its handler is slow, and hand each call to another thread. By this clock the time of a call depends
// only on how often the call reads the clock. All processes share the clock, which is the first number in FILE.
// A wait with a time limit takes many times its limit, so that few waits end by it: the second number in FILE is the
// factor, or SLOWNESS. A wait that times out advances the clock to its end.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 500
#define SLOWNESS 60
#define SECOND 1000000000ll

struct shared {
    _Atomic int64_t clock_ns, slowness;
};

static struct shared own = {1000 * SECOND, SLOWNESS};
static struct shared *shared = &own;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("COUNTED_CLOCK");
    const int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    if (!ftruncate(file, sizeof own)) {
        void *mapped = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            int64_t unset = 0;
            shared = mapped;
            atomic_compare_exchange_strong(&shared->clock_ns, &unset, 1000 * SECOND);
            unset = 0;
            atomic_compare_exchange_strong(&shared->slowness, &unset, SLOWNESS);
        }
    }
    close(file);
}

static void move_on_to(int64_t ns) {
    int64_t now = atomic_load(&shared->clock_ns);
    while (now < ns && !atomic_compare_exchange_weak(&shared->clock_ns, &now, ns)) continue;
}

static int64_t nanoseconds(const struct timespec *time) { return time->tv_sec * SECOND + time->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, now);
    *now = timespec_of(atomic_fetch_add(&shared->clock_ns, LOOK_NS) + LOOK_NS);
    return 0;
}

static int64_t slowed(int64_t ns) {
    const int64_t slowness = atomic_load(&shared->slowness), most = 1000000000 * SECOND;
    return ns <= 0 ? 0 : ns < most / slowness ? ns * slowness : most;
}

// When a wait ends by the machine's clock that ends by this clock at a time.
static struct timespec end_of(const struct timespec *until) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return timespec_of(nanoseconds(&now) + slowed(nanoseconds(until) - atomic_load(&shared->clock_ns)));
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
    NEXT(pthread_cond_clockwait);
    if (clock != CLOCK_MONOTONIC) return next(condition, mutex, clock, until);
    const struct timespec at = end_of(until);
    const int ended = next(condition, mutex, clock, &at);
    if (ended == ETIMEDOUT) move_on_to(nanoseconds(until));
    return ended;
}

// Of Python and of ksrv, whose conditions wait by the monotonic clock.
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    NEXT(pthread_cond_timedwait);
    const struct timespec at = end_of(until);
    const int ended = next(condition, mutex, &at);
    if (ended == ETIMEDOUT) move_on_to(nanoseconds(until));
    return ended;
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    NEXT(sem_clockwait);
    if (clock != CLOCK_MONOTONIC) return next(semaphore, clock, until);
    const struct timespec at = end_of(until);
    const int failed = next(semaphore, clock, &at);
    if (failed && errno == ETIMEDOUT) move_on_to(nanoseconds(until));
    return failed;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    NEXT(clock_nanosleep);
    if (clock != CLOCK_MONOTONIC || flags != TIMER_ABSTIME) return next(clock, flags, until, left);
    const struct timespec at = end_of(until);
    const int failed = next(clock, flags, &at, left);
    if (!failed) move_on_to(nanoseconds(until));
    return failed;
}

static int slow_ms(int timeout) {
    const int64_t slow = slowed(timeout * (SECOND / 1000)) / (SECOND / 1000);
    return slow < INT32_MAX ? (int)slow : -1;
}

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout) {
    NEXT(epoll_wait);
    if (timeout <= 0) return next(epoll, events, count, timeout);
    const int64_t until = atomic_load(&shared->clock_ns) + timeout * (SECOND / 1000);
    const int found = next(epoll, events, count, slow_ms(timeout));
    if (!found) move_on_to(until);
    return found;
}

// Waits of a worker's main thread, which reports to its master each second.
int poll(struct pollfd *entries, nfds_t count, int timeout) {
    NEXT(poll);
    if (timeout <= 0) return next(entries, count, timeout);
    const int64_t until = atomic_load(&shared->clock_ns) + timeout * (SECOND / 1000);
    const int found = next(entries, count, slow_ms(timeout));
    if (!found) move_on_to(until);
    return found;
}
