// Aligned, pooled, reference-counted blocks of memory: where bodies are received and batches built.
//
// Strategy: a block is leased for a number of bytes, counted by its holders and returned to a pool
// when the last of them lets go; the pool hands out the newest block that fits (it is still in the
// cache, and its pages are mapped) and is bounded in bytes and in age. A block is taken for n bytes
// when its capacity lies between n and 4n + 64 KiB, so that a small body never pins a huge block.
//
// Each thread prefers one of a few shards, so threads rarely meet on a lock; a miss looks into the
// others before it allocates. The memory itself comes from a back end: the heap, pages of the block's own,
// or a sealed memfd that another process can map. After a fork the child forgets every block of the last
// two, because their pages are shared with the parent.
//
// A large body lies in a memfd where there are handler processes, so that one of them can be lent it: such a
// process reads the body where it was received and cannot write there, and the block is not used again.
//
// A block whose pages are its own can be pinned: a device then reads and writes it without the system's
// copy. It stays pinned while it is pooled, because pinning costs more than the copy does.
//
// Nothing here throws, knows Python, or touches the bytes of a block.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ksrv {

enum Backend : int {
    BACKEND_HEAP = 0,
    BACKEND_MEMFD,
    BACKEND_ADOPTED,   // another process's memfd
    BACKEND_BORROWED,  // the same, and what is written here is seen here alone
    BACKEND_PAGES,
};

inline constexpr std::size_t BLOCK_ALIGNMENT = 64;
inline constexpr std::size_t BLOCK_SLACK = 64 * 1024;
inline constexpr std::size_t BLOCK_LIMIT = std::size_t{1} << 39;  // refused without asking malloc

struct Block {
    unsigned char *data = nullptr;
    std::size_t capacity = 0;  // bytes behind `data`
    std::size_t size = 0;      // bytes the holder asked for; no view reaches beyond
    int fd = -1;
    int backend = BACKEND_HEAP;
    bool pooled_before = false;  // its pages are in memory already
    bool unwritten = false;      // set by a holder that left part of it untouched: it is not pooled
    bool lent = false;           // another process may have it mapped: it is not pooled either
    std::atomic<bool> pinned{false};
    std::uint64_t generation = 0;  // of the pool that made it; another one after a fork
    std::uint64_t idle_since = 0;  // nanoseconds, while pooled
    Block *newer = nullptr, *older = nullptr;
    std::atomic<long> refs{0};
};

inline long holders_of(const Block *block) noexcept {
    return block->refs.load(std::memory_order_acquire);
}

// A new memfd, closed on exec and sealed against what `seals` say; -1 and errno where there is none. Its first `taken`
// bytes have their pages, so that a lack of memory shows here and not as a SIGBUS of a writer.
int make_memfd(const char *name, std::size_t nbytes, std::size_t taken, int seals) noexcept;

// Has all pages of the first `nbytes` of a memfd that another process has mapped, which nobody takes away from now on.
// False where there is no memory, or the other process has sealed the descriptor itself.
bool keep_pages(int fd, std::size_t nbytes) noexcept;

// A device's own functions, such as CUDA's cudaHostRegister and cudaHostUnregister; both return 0 for done.
using PinFunction = int (*)(void *data, std::size_t nbytes, unsigned flags);
using UnpinFunction = int (*)(void *data);

enum AdoptError : int { ADOPT_OK = 0, ADOPT_STAT, ADOPT_SIZE, ADOPT_SEALS, ADOPT_MAP };

struct BufferPoolStatistics {
    std::uint64_t leased_blocks, leased_bytes, pooled_blocks, pooled_bytes, cap_bytes, hits, misses,
        pinned_bytes;
};

class BufferPool {
  public:
    static constexpr int SHARDS = 8;
    static constexpr int SHARD_BLOCKS = 64;  // bounds the search; more are freed, oldest first

    std::atomic<std::uint64_t> cap_bytes{256ull << 20};
    std::atomic<std::uint64_t> idle_nanoseconds{30ull * 1000000000ull};
    std::atomic<std::uint64_t> copied_bytes{0};
    std::atomic<std::uint64_t> lendable_above{UINT64_MAX};  // bytes of a body

    // One reference for the caller, or null when there is no memory. The contents are undefined.
    // A `fresh` one was not in use before: the system gives it memory only where it is written.
    Block *lease(std::size_t nbytes, int backend, bool fresh = false) noexcept;

    // As `lease`, for a body of a request: a block that can be lent where it is large.
    Block *lease_body(std::size_t nbytes, bool fresh = false) noexcept;

    // Lets another process map a body's block by its descriptor, to read it: no process can map it for writing
    // from now on. False for blocks that cannot be lent.
    bool lend(Block *block) noexcept;

    // As `lease`, for a descriptor that another process sent: BACKEND_ADOPTED or BACKEND_BORROWED. Such a block is
    // never pooled.
    Block *adopt(int fd, std::size_t nbytes, int backend, AdoptError *error) noexcept;

    static void retain(Block *block) noexcept {
        block->refs.fetch_add(1, std::memory_order_relaxed);
    }

    // Makes room for `nbytes` in the block of a body of one holder, whose bytes may move; false when there is no
    // memory. A pooled block that fits is taken first; otherwise the system moves a large block's pages instead of copying them.
    bool grow(Block *block, std::size_t nbytes) noexcept;

    // Gives the whole pages between two bytes of a body's block back to the system; what they held is lost.
    static void give_back(Block *block, std::size_t begin, std::size_t end) noexcept;

    void release(Block *block) noexcept;

    // Has the process's device pin blocks from now on; null functions pin no more.
    void use_pinning(PinFunction pin, UnpinFunction unpin) noexcept;

    // Whether the block is pinned, now or since before: false where its pages are not its own, or soon gone, without a
    // device, and where the device refuses. A holder calls it, on a thread that uses the device.
    bool pin(Block *block) noexcept;

    // The same for memory that is no block, for as long as the process lives; the caller asks once.
    bool pin_memory(void *data, std::size_t nbytes) noexcept;

    // Frees pooled blocks that have not been used for `idle` nanoseconds; 0 frees all of them.
    std::uint64_t trim(std::uint64_t idle) noexcept;

    BufferPoolStatistics statistics() const noexcept;

    // Around fork: no thread may hold a lock, and the child gives up what it shares with the parent.
    void before_fork() noexcept;
    void after_fork_in_parent() noexcept;
    void after_fork_in_child() noexcept;

  private:
    struct alignas(64) Shard {
        std::mutex lock;
        Block *newest = nullptr, *oldest = nullptr;
        int blocks = 0;
    };

    static int own_shard() noexcept;

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

    Block *take(std::size_t nbytes, int backend) noexcept;
    bool move_to_pooled(Block *block, std::size_t nbytes, int backend) noexcept;
    void put(Block *block) noexcept;
    void unlink(Shard &shard, Block *block) noexcept;
    void doom(Shard &shard, Block *block, Block **doomed) noexcept;
    void free_block(Block *block) noexcept;
    std::uint64_t free_all(Block *doomed) noexcept;

    Shard shards_[SHARDS];
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::uint64_t> leased_blocks_{0}, leased_bytes_{0};
    std::atomic<std::uint64_t> pooled_blocks_{0}, pooled_bytes_{0};
    std::atomic<std::uint64_t> hits_{0}, misses_{0}, pinned_bytes_{0};
    std::mutex pinning_;  // two threads may pin one block
    std::atomic<PinFunction> pin_{nullptr};
    std::atomic<UnpinFunction> unpin_{nullptr};
};

// The process's pool. Never destroyed, because threads outlive exit.
BufferPool &process_pool() noexcept;

// Notes that tensor bytes were copied; tests hold the ways that promise not to.
inline void count_copy(std::size_t nbytes) noexcept {
    process_pool().copied_bytes.fetch_add(nbytes, std::memory_order_relaxed);
}

}  // namespace ksrv
