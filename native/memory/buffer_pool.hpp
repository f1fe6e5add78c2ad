// Aligned, pooled, reference-counted blocks of memory, for received bodies and for batches.
//
// Strategy: a block is leased for a number of bytes and returned to a pool when its last reference is released. The
// pool hands out the newest block that fits, because its data may still be in the cache and its pages are mapped. The
// pool is limited in bytes and in age. A block is reused for n bytes if its capacity is between n and 4n + 64 KiB, so
// that a small body never occupies a huge block.
//
// Back ends provide the memory: the heap, separate pages, or a sealed memfd that another process can map. After a fork,
// the child abandons all blocks of the last two kinds, because the parent shares their pages.
//
// If there are handler processes, a large body is received into a memfd, so that it can be lent to such a process. The
// process reads the body in place and cannot write to it. A lent block is not pooled.
//
// A block with separate pages can be pinned, so that a device accesses it without a copy by the system. It stays pinned
// while it is pooled, because pinning costs more than the copy.
//
// Nothing here throws or uses Python.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ksrv {

enum Backend : int {
    BACKEND_HEAP = 0,
    BACKEND_MEMFD,
    BACKEND_BORROWED,  // another process's memfd, mapped so that writes stay private
    BACKEND_PAGES,
    BACKEND_SLOT,      // a part of memory that `returned` takes back
};

inline constexpr std::size_t BLOCK_ALIGNMENT = 64;
inline constexpr std::size_t BLOCK_SLACK = 64 * 1024;
inline constexpr std::size_t BLOCK_LIMIT = std::size_t{1} << 39;  // larger requests fail without calling malloc

struct Block {
    unsigned char *data = nullptr;
    std::size_t capacity = 0;  // bytes at `data`
    std::size_t size = 0;      // requested bytes; no view exceeds them
    int fd = -1;
    int backend = BACKEND_HEAP;
    bool pooled_before = false;  // the pages are already in memory
    // Pages may be missing, because they were never written or a holder gave them back to the system: not pooled.
    bool unwritten = false;
    bool lent = false;           // another process may have it mapped, so that it must not be pooled
    std::atomic<bool> pinned{false};
    std::uint64_t generation = 0;  // of the pool when the block was made; changes with a fork
    std::uint64_t idle_since = 0;  // nanoseconds, while pooled
    void (*returned)(Block *block) = nullptr;  // called after the last release, instead of pooling
    Block *newer = nullptr, *older = nullptr;
    std::atomic<long> refs{0};
};

// A new memfd, closed on exec, with the given seals; -1 and errno on failure. The pages of its first `taken` bytes are
// allocated, so that a lack of memory is an error here and not a SIGBUS later.
int make_memfd(const char *name, std::size_t nbytes, std::size_t taken, int seals) noexcept;

// Allocates the first pages of a memfd. False and errno if memory is short.
bool take_pages(int fd, std::size_t nbytes) noexcept;

// Allocates all pages of the first `nbytes` of a memfd that another process has mapped, and prevents their removal.
// False if memory is short, or if the other process has sealed the descriptor itself.
bool keep_pages(int fd, std::size_t nbytes) noexcept;

// Functions of a device, such as CUDA's cudaHostRegister and cudaHostUnregister. Both return 0 on success.
using PinFunction = int (*)(void *data, std::size_t nbytes, unsigned flags);
using UnpinFunction = int (*)(void *data);

enum AdoptError : int { ADOPT_OK = 0, ADOPT_STAT, ADOPT_SIZE, ADOPT_SEALS, ADOPT_MAP };

struct BufferPoolStatistics {
    std::uint64_t leased_blocks, leased_bytes, pooled_blocks, pooled_bytes, cap_bytes, hits, misses, pinned_bytes;
};

class BufferPool {
  public:
    static constexpr std::uint64_t MOST_BLOCKS = 128;  // limits the search; more blocks are freed, oldest first

    std::atomic<std::uint64_t> cap_bytes{256ull << 20};
    std::atomic<std::uint64_t> idle_nanoseconds{30ull * 1'000'000'000ull};
    std::atomic<std::uint64_t> copied_bytes{0};
    std::atomic<std::uint64_t> lendable_above{UINT64_MAX};  // larger bodies get a block that can be lent

    // Returns one reference, or null if memory is short. The contents are undefined. A `fresh` block was never in use:
    // the system provides its pages when they are written.
    Block *lease(std::size_t nbytes, int backend, bool fresh = false) noexcept;

    // As `lease`, for a request body. A large body gets a block that can be lent.
    Block *lease_body(std::size_t nbytes, bool fresh = false) noexcept;

    // Allows another process to map a body's block by its descriptor, read-only: from now on no process can map it for
    // writing. False if the block cannot be lent.
    bool lend(Block *block) noexcept;

    // As `lease`, for a descriptor from another process. The block is never pooled.
    Block *adopt(int fd, std::size_t nbytes, AdoptError *error) noexcept;

    static void retain(Block *block) noexcept {
        block->refs.fetch_add(1, std::memory_order_relaxed);
    }

    // Returns the whole pages between two offsets of a body's block to the system. Their contents are lost.
    static void give_back(Block *block, std::size_t begin, std::size_t end) noexcept;

    void release(Block *block) noexcept;

    // Sets the functions that pin and unpin blocks for the process's device. Null disables pinning.
    void use_pinning(PinFunction pin, UnpinFunction unpin) noexcept;

    // Pins the block. True if it is pinned now or was before. False if the block shares pages, is borrowed, or the
    // device is missing or refuses. The caller must hold the block, and must be a thread that uses the device.
    bool pin(Block *block) noexcept;

    // A number that changes in a forked child, so that the child recognises blocks of its parent.
    std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_relaxed); }

    // Frees pooled blocks that have not been used for `idle` nanoseconds; 0 frees all of them.
    std::uint64_t trim(std::uint64_t idle) noexcept;

    BufferPoolStatistics statistics() noexcept;

    // Called around fork. The parent holds the lock during the fork, so that the child finds the list complete. The
    // child frees its mappings of memory that it shares with the parent.
    void before_fork() noexcept { lock_.lock(); }
    void after_fork_in_parent() noexcept { lock_.unlock(); }
    void after_fork_in_child() noexcept;

  private:
    static bool fits(const Block *block, std::size_t nbytes, int backend) noexcept {
        return block->backend == backend && block->capacity >= nbytes &&
               block->capacity <= 4 * nbytes + BLOCK_SLACK;
    }

    void hand_out(Block *block, std::size_t nbytes) noexcept {
        block->size = nbytes;
        block->refs.store(1, std::memory_order_relaxed);
        leased_blocks_.fetch_add(1, std::memory_order_relaxed);
        leased_bytes_.fetch_add(block->capacity, std::memory_order_relaxed);
    }

    // Remove a block from the pool, and add a block to the pool.
    Block *take(std::size_t nbytes, int backend) noexcept;
    void put(Block *block) noexcept;
    void unlink(Block *block) noexcept;
    // Moves a block from the pool to the list `doomed`, which `free_all` frees after the lock was released.
    void doom(Block *block, Block **doomed) noexcept;
    void free_block(Block *block) noexcept;
    std::uint64_t free_all(Block *doomed) noexcept;

    std::mutex lock_;
    // The pooled blocks, linked by age. Guarded by `lock_`, as are their sums.
    Block *newest_ = nullptr, *oldest_ = nullptr;
    std::uint64_t pooled_blocks_ = 0, pooled_bytes_ = 0;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::uint64_t> leased_blocks_{0}, leased_bytes_{0};
    std::atomic<std::uint64_t> hits_{0}, misses_{0}, pinned_bytes_{0};
    std::mutex pinning_;  // two threads may pin the same block
    std::atomic<PinFunction> pin_{nullptr};
    std::atomic<UnpinFunction> unpin_{nullptr};
};

// The process-wide pool. Never destroyed, because threads outlive exit.
BufferPool &process_pool() noexcept;

// Counts copied tensor bytes. Tests check with the count that a path copies nothing.
inline void count_copy(std::size_t nbytes) noexcept {
    process_pool().copied_bytes.fetch_add(nbytes, std::memory_order_relaxed);
}

}  // namespace ksrv
