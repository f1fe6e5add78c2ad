// KSRV_CLONES compiles a function in several variants, for different SIMD instructions. At program start, the loader
// chooses the fastest variant that the processor supports.
//
// Only glibc chooses at program start, and only gcc builds such functions for C++ in this way. Elsewhere, and
// under a sanitizer (which runs before the resolver may), the macro is empty and the portable variant is used. All
// variants compute the same results on every machine, because the build turns off the contraction of a * b + c.

#pragma once

#include <cstdlib>  // defines __GLIBC__ where it applies

#if defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GNUC__ >= 12
#define KSRV_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KSRV_CLONES __attribute__((target_clones("avx2", "default")))
#endif
#else
#define KSRV_CLONES
#endif

// For functions that a function with KSRV_CLONES calls: only if they are inlined, they get its instructions.
#define KSRV_INLINE inline __attribute__((always_inline))
