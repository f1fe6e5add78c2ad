// A block of the heap that cannot grow: realloc has moved it, and aligned memory is not available. It must not be pooled, or its
// next holder would get memory that is not aligned. Prints what is wrong and exits 1.

#include <errno.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdio>

#include "memory/buffer_pool.hpp"
#include "../support/native/checks.hpp"

namespace {

bool lacks_memory = false;

}  // namespace

// In place of the C library's.
extern "C" int posix_memalign(void **out, size_t alignment, size_t size) noexcept {
    *out = lacks_memory ? nullptr : aligned_alloc(alignment, size);
    return *out ? 0 : ENOMEM;
}

using namespace ksrv;

namespace {

constexpr int TRIES = 1000;

bool is_aligned(const Block *block) { return reinterpret_cast<std::uintptr_t>(block->data) % BLOCK_ALIGNMENT == 0; }

}  // namespace

int main() {
    BufferPool &pool = process_pool();
    bool unaligned = false;
    for (int i = 0; i < TRIES && !unaligned; ++i) {
        Block *block = pool.lease(1000, BACKEND_HEAP);
        lacks_memory = true;
        pool.grow(block, 100000 + 16 * i);
        lacks_memory = false;
        unaligned = !is_aligned(block);
        pool.release(block);
        Block *next = pool.lease(100000, BACKEND_HEAP);
        check(next && is_aligned(next), "a block is aligned");
        pool.release(next);
        pool.trim(0);
    }
    check(unaligned, "realloc returns memory that is not aligned");
    std::printf("0 faults\n");
    return 0;
}
