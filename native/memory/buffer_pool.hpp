// Aligned, pooled, reference-counted blocks of memory: where bodies are received and batches built.
//
// Strategy: a block is leased for a number of bytes, counted by its holders and returned to a pool
// when the last of them lets go; the pool hands out the newest block that fits (it is still in the
// cache, and its pages are mapped) and is bounded in bytes and in age. A block is taken for n bytes
// when its capacity lies between n and 4n + 64 KiB, so that a small body never pins a huge block.
//
// Each thread prefers one of a few shards, so threads rarely meet on a lock; a miss looks into the
// others before it allocates. The memory itself comes from a back end: the heap, or a sealed memfd
// that another process can map. After a fork the child forgets every memfd block, because the pages
// of those are shared with the parent.
//
// Nothing here throws, knows Python, or touches the bytes of a block.

#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

namespace ksrv {

enum Backend : int { BACKEND_HEAP = 0, BACKEND_MEMFD = 1, BACKEND_ADOPTED = 2 };

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
    std::uint64_t generation = 0;  // of the arena that made it; another one after a fork
    std::uint64_t idle_since = 0;  // nanoseconds, while pooled
    Block *newer = nullptr, *older = nullptr;
    std::atomic<long> refs{0};
};

inline long holders_of(const Block *block) noexcept {
    return block->refs.load(std::memory_order_acquire);
}

// ---- back ends: allocate and free memory, nothing else --------------------------------------

inline bool heap_allocate(Block *block, std::size_t nbytes) noexcept {
    std::size_t capacity = (nbytes + BLOCK_ALIGNMENT - 1) & ~(BLOCK_ALIGNMENT - 1);
    if (capacity == 0) capacity = BLOCK_ALIGNMENT;
    void *data = nullptr;
    if (posix_memalign(&data, BLOCK_ALIGNMENT, capacity) != 0) return false;
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    return true;
}

// The descriptor is sealed against growing and shrinking, so that no holder of it can make another
// one's mapping fault, and closed on exec.
inline bool memfd_allocate(Block *block, std::size_t nbytes) noexcept {
#ifdef MFD_ALLOW_SEALING
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t capacity = (nbytes + page - 1) & ~(page - 1);
    if (capacity == 0) capacity = page;
    const int fd = memfd_create("ksrv-block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    void *data = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(capacity)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        close(fd);
        return false;
    }
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    block->fd = fd;
    return true;
#else
    (void)block, (void)nbytes;
    return false;
#endif
}

enum AdoptError : int { ADOPT_OK = 0, ADOPT_STAT, ADOPT_SIZE, ADOPT_SEALS, ADOPT_MAP };

// Maps somebody else's memfd. One that its sender can still shrink is refused: reading past the end
// of a shrunken file is a SIGBUS. On success the block owns `fd`.
inline AdoptError memfd_adopt(Block *block, int fd, std::size_t nbytes) noexcept {
    struct stat status;
    if (fstat(fd, &status) != 0) return ADOPT_STAT;
    if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < nbytes || nbytes == 0)
        return ADOPT_SIZE;
#ifdef F_GET_SEALS
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return ADOPT_SEALS;
#endif
    const std::size_t capacity = static_cast<std::size_t>(status.st_size);
    void *data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return ADOPT_MAP;
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    block->fd = fd;
    block->backend = BACKEND_ADOPTED;
    return ADOPT_OK;
}

inline void free_block(Block *block) noexcept {
    if (block->backend == BACKEND_HEAP) {
        free(block->data);
    } else {
        munmap(block->data, block->capacity);
        close(block->fd);
    }
    delete block;
}

// ---- the arena ------------------------------------------------------------------------------

inline std::uint64_t coarse_nanoseconds() noexcept {
#ifdef CLOCK_MONOTONIC_COARSE
    constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
    constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000ull +
           static_cast<std::uint64_t>(now.tv_nsec);
}

struct ArenaStatistics {
    std::uint64_t leased_blocks, leased_bytes, pooled_blocks, pooled_bytes, cap_bytes, hits, misses;
};

class Arena {
  public:
    static constexpr int SHARDS = 8;
    static constexpr int SHARD_BLOCKS = 64;  // bounds the search; more are freed, oldest first

    std::atomic<std::uint64_t> cap_bytes{256ull << 20};
    std::atomic<std::uint64_t> idle_nanoseconds{30ull * 1000000000ull};
    std::atomic<std::uint64_t> copied_bytes{0};

    // One reference for the caller, or null when there is no memory. The contents are undefined.
    // A `fresh` one was not in use before: the system gives it memory only where it is written.
    Block *lease(std::size_t nbytes, int backend, bool fresh = false) noexcept {
        if (nbytes > BLOCK_LIMIT) return nullptr;
        Block *block = fresh ? nullptr : take(nbytes, backend);
        if (block != nullptr) {
            block->pooled_before = true;
            hits_.fetch_add(1, std::memory_order_relaxed);
        } else {
            block = new (std::nothrow) Block;
            if (block == nullptr) return nullptr;
            block->backend = backend;
            block->generation = generation_.load(std::memory_order_relaxed);
            const bool made = backend == BACKEND_MEMFD ? memfd_allocate(block, nbytes)
                                                       : heap_allocate(block, nbytes);
            if (!made) {
                delete block;
                return nullptr;
            }
            misses_.fetch_add(1, std::memory_order_relaxed);
        }
        hand_out(block, nbytes);
        return block;
    }

    // As `lease`, for a descriptor that another process sent. Such a block is never pooled.
    Block *adopt(int fd, std::size_t nbytes, AdoptError *error) noexcept {
        Block *block = new (std::nothrow) Block;
        *error = ADOPT_MAP;
        if (block == nullptr) return nullptr;
        block->generation = generation_.load(std::memory_order_relaxed);
        *error = nbytes > BLOCK_LIMIT ? ADOPT_SIZE : memfd_adopt(block, fd, nbytes);
        if (*error != ADOPT_OK) {
            delete block;
            return nullptr;
        }
        hand_out(block, nbytes);
        return block;
    }

    static void retain(Block *block) noexcept {
        block->refs.fetch_add(1, std::memory_order_relaxed);
    }

    // Gives the pages behind the first `used` bytes back to the system; their holder has not written them.
    static void give_back_behind(Block *block, std::size_t used) noexcept {
        const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
        const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(block->data);
        const std::uintptr_t first = (start + used + page - 1) & ~(page - 1);
        const std::uintptr_t end = (start + block->capacity) & ~(page - 1);
        if (block->backend == BACKEND_HEAP && first < end)
            madvise(reinterpret_cast<void *>(first), end - first, MADV_DONTNEED);
    }

    void release(Block *block) noexcept {
        if (block->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        leased_blocks_.fetch_sub(1, std::memory_order_relaxed);
        leased_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
        const bool shared_with_parent =
            block->generation != generation_.load(std::memory_order_relaxed);
        if (block->backend == BACKEND_ADOPTED || block->unwritten ||
            (block->fd >= 0 && shared_with_parent)) {
            free_block(block);
            return;
        }
        put(block);
    }

    // Frees pooled blocks that nobody has used for `idle` nanoseconds; 0 frees all of them.
    std::uint64_t trim(std::uint64_t idle) noexcept {
        const std::uint64_t now = coarse_nanoseconds();
        std::uint64_t freed = 0;
        for (Shard &shard : shards_) {
            Block *doomed = nullptr;
            {
                std::lock_guard<std::mutex> guard(shard.lock);
                while (shard.oldest != nullptr && now - shard.oldest->idle_since >= idle)
                    doom(shard, shard.oldest, &doomed);
            }
            freed += free_all(doomed);
        }
        return freed;
    }

    ArenaStatistics statistics() const noexcept {
        return {leased_blocks_.load(), leased_bytes_.load(), pooled_blocks_.load(),
                pooled_bytes_.load(),  cap_bytes.load(),     hits_.load(),
                misses_.load()};
    }

    // Around fork: nobody may hold a lock, and the child gives up what it shares with the parent.
    void before_fork() noexcept {
        for (Shard &shard : shards_) shard.lock.lock();
    }
    void after_fork_in_parent() noexcept {
        for (Shard &shard : shards_) shard.lock.unlock();
    }
    void after_fork_in_child() noexcept {
        generation_.fetch_add(1, std::memory_order_relaxed);
        for (Shard &shard : shards_) {
            Block *doomed = nullptr;
            for (Block *block = shard.newest, *next; block != nullptr; block = next) {
                next = block->older;
                if (block->fd >= 0) doom(shard, block, &doomed);
            }
            shard.lock.unlock();
            free_all(doomed);
        }
    }

  private:
    struct alignas(64) Shard {
        std::mutex lock;
        Block *newest = nullptr, *oldest = nullptr;
        int blocks = 0;
    };

    static int own_shard() noexcept {
        static std::atomic<unsigned> threads{0};
        thread_local const unsigned mine = threads.fetch_add(1, std::memory_order_relaxed);
        return static_cast<int>(mine % SHARDS);
    }

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

    Block *take(std::size_t nbytes, int backend) noexcept {
        if (pooled_blocks_.load(std::memory_order_relaxed) == 0) return nullptr;
        const int mine = own_shard();
        for (int i = 0; i < SHARDS; ++i) {
            Shard &shard = shards_[(mine + i) % SHARDS];
            std::lock_guard<std::mutex> guard(shard.lock);
            for (Block *block = shard.newest; block != nullptr; block = block->older) {
                if (!fits(block, nbytes, backend)) continue;
                unlink(shard, block);
                return block;
            }
        }
        return nullptr;
    }

    // The block that comes back is the warmest one: older ones make room for it.
    void put(Block *block) noexcept {
        const std::uint64_t cap = cap_bytes.load(std::memory_order_relaxed);
        const std::uint64_t now = coarse_nanoseconds();
        const std::uint64_t idle = idle_nanoseconds.load(std::memory_order_relaxed);
        if (block->capacity > cap) {
            free_block(block);
            return;
        }
        Block *doomed = nullptr;
        Shard &shard = shards_[own_shard()];
        {
            std::lock_guard<std::mutex> guard(shard.lock);
            while (shard.oldest != nullptr &&
                   (shard.blocks >= SHARD_BLOCKS || now - shard.oldest->idle_since >= idle ||
                    pooled_bytes_.load(std::memory_order_relaxed) + block->capacity > cap))
                doom(shard, shard.oldest, &doomed);
            if (pooled_bytes_.load(std::memory_order_relaxed) + block->capacity > cap) {
                block->older = doomed;
                doomed = block;
            } else {
                block->idle_since = now;
                block->newer = nullptr;
                block->older = shard.newest;
                (shard.newest != nullptr ? shard.newest->newer : shard.oldest) = block;
                shard.newest = block;
                ++shard.blocks;
                pooled_blocks_.fetch_add(1, std::memory_order_relaxed);
                pooled_bytes_.fetch_add(block->capacity, std::memory_order_relaxed);
            }
        }
        free_all(doomed);
    }

    void unlink(Shard &shard, Block *block) noexcept {
        (block->newer != nullptr ? block->newer->older : shard.newest) = block->older;
        (block->older != nullptr ? block->older->newer : shard.oldest) = block->newer;
        block->newer = block->older = nullptr;
        --shard.blocks;
        pooled_blocks_.fetch_sub(1, std::memory_order_relaxed);
        pooled_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
    }

    void doom(Shard &shard, Block *block, Block **doomed) noexcept {
        unlink(shard, block);
        block->older = *doomed;
        *doomed = block;
    }

    static std::uint64_t free_all(Block *doomed) noexcept {
        std::uint64_t freed = 0;
        while (doomed != nullptr) {
            Block *next = doomed->older;
            freed += doomed->capacity;
            free_block(doomed);
            doomed = next;
        }
        return freed;
    }

    Shard shards_[SHARDS];
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::uint64_t> leased_blocks_{0}, leased_bytes_{0};
    std::atomic<std::uint64_t> pooled_blocks_{0}, pooled_bytes_{0};
    std::atomic<std::uint64_t> hits_{0}, misses_{0};
};

// The process's arena. Only buffer_pool.pyx may call this: every extension module that includes this header
// would otherwise get an arena of its own. Never destroyed, because threads outlive exit.
inline Arena &process_arena() noexcept {
    static Arena *arena = [] {
        static Arena *made = new Arena;
        pthread_atfork([] { made->before_fork(); }, [] { made->after_fork_in_parent(); },
                       [] { made->after_fork_in_child(); });
        return made;
    }();
    return *arena;
}

}  // namespace ksrv
