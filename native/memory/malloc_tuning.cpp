#include "memory/malloc_tuning.hpp"

#include <stdlib.h>  // defines __GLIBC__ where it applies

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ksrv {

#ifdef __GLIBC__

bool tune_malloc(int keep, bool no_mmap, int heaps) noexcept {
    int done = mallopt(M_MMAP_THRESHOLD, 32 << 20) & mallopt(M_TRIM_THRESHOLD, keep);
    done &= mallopt(M_ARENA_MAX, heaps);
    if (no_mmap) done &= mallopt(M_MMAP_MAX, 0);
    return done == 1;
}

bool keep_freed(int keep) noexcept { return mallopt(M_TRIM_THRESHOLD, keep) == 1; }

bool trim_malloc() noexcept { return malloc_trim(0) == 1; }

#else

bool tune_malloc(int, bool, int) noexcept { return false; }
bool keep_freed(int) noexcept { return false; }
bool trim_malloc() noexcept { return false; }

#endif

}  // namespace ksrv
