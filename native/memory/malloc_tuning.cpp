#include "memory/malloc_tuning.hpp"

#include <stdlib.h>  // defines __GLIBC__ where it applies

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ksrv {

#ifdef __GLIBC__

constexpr int MAPPED_FROM_BYTES = 32 << 20;

static bool set(int option, int value) noexcept { return mallopt(option, value) == 1; }

bool tune_malloc(int kept_bytes, bool no_mmap, int heaps) noexcept {
    // `&`, not `&&`: a refused option does not prevent the others.
    return set(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) & keep_freed(kept_bytes) & set(M_ARENA_MAX, heaps) &
           (!no_mmap || set(M_MMAP_MAX, 0));
}

bool keep_freed(int kept_bytes) noexcept { return set(M_TRIM_THRESHOLD, kept_bytes); }

bool trim_malloc() noexcept { return malloc_trim(0) == 1; }

#else

bool tune_malloc(int, bool, int) noexcept { return false; }
bool keep_freed(int) noexcept { return false; }
bool trim_malloc() noexcept { return false; }

#endif

}  // namespace ksrv
