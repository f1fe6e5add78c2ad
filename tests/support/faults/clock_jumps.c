// A wall clock that a file sets ahead or back, for programs under LD_PRELOAD; the monotonic clock passes as ever.
//
//     cc -O2 -shared -fPIC clock_jumps.c -o clock_jumps.so
//     CLOCK_JUMPS=FILE LD_PRELOAD=./clock_jumps.so ksrv serve ...
//
// FILE holds the seconds as 8 bytes in the machine's order; it is mapped, so that each call sees the current value.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("CLOCK_JUMPS");
    const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) ahead = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    const int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    if (out) *out = found.tv_sec;
    return found.tv_sec;
}
