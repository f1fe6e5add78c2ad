#include "memory/buffer_pool.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.hpp"

namespace ksrv {

#ifndef F_SEAL_FUTURE_WRITE  // for headers before Linux 5.1, which does not support it
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace {

// ---- back ends, which only allocate and free memory -----------------------------------------

std::size_t whole_pages(std::size_t nbytes) noexcept {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return nbytes == 0 ? page : (nbytes + page - 1) & ~(page - 1);
}

bool heap_allocate(Block *block, std::size_t nbytes) noexcept {
    std::size_t capacity = (nbytes + BLOCK_ALIGNMENT - 1) & ~(BLOCK_ALIGNMENT - 1);
    if (capacity == 0) capacity = BLOCK_ALIGNMENT;
    void *data = nullptr;
    if (posix_memalign(&data, BLOCK_ALIGNMENT, capacity) != 0) return false;
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    return true;
}

// The memfd is sealed against shrinking, so that no other holder can make accesses to a mapping fault.
bool memfd_allocate(Block *block, std::size_t nbytes) noexcept {
    const std::size_t capacity = whole_pages(nbytes);
    const int fd = make_memfd("ksrv-block", capacity, 0, F_SEAL_SHRINK);
    if (fd < 0) return false;
    void *data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        close(fd);
        return false;
    }
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    block->fd = fd;
    return true;
}

// MAP_SHARED, because a fork must not copy a page that a device still writes to at its old address.
bool pages_allocate(Block *block, std::size_t nbytes) noexcept {
    const std::size_t capacity = whole_pages(nbytes);
    void *data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return false;
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    return true;
}

bool allocate(Block *block, std::size_t nbytes) noexcept {
    switch (block->backend) {
        case BACKEND_MEMFD: return memfd_allocate(block, nbytes);
        case BACKEND_PAGES: return pages_allocate(block, nbytes);
        default: return heap_allocate(block, nbytes);
    }
}

// A memfd with huge pages is in another file system (hugetlbfs). Mappings of huge pages may lack pages.
bool has_ordinary_pages(int fd) noexcept {
    struct statfs system;
    return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

// Maps another process's memfd. Refuses a memfd that can still shrink, or whose pages the system may be unable to
// provide, because reading a missing page raises SIGBUS. Maps only the pages of `nbytes`: a sparse file costs its
// sender nothing, and mapping all of it would use up addresses. On success the block owns `fd`.
AdoptError memfd_adopt(Block *block, int fd, std::size_t nbytes) noexcept {
    struct stat status;
    if (fstat(fd, &status) != 0) return ADOPT_STAT;
    if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < nbytes || nbytes == 0)
        return ADOPT_SIZE;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !has_ordinary_pages(fd)) return ADOPT_SEALS;
    const std::size_t capacity = whole_pages(nbytes);
    void *data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) return ADOPT_MAP;
    block->data = static_cast<unsigned char *>(data);
    block->capacity = capacity;
    block->fd = fd;
    block->backend = BACKEND_BORROWED;
    return ADOPT_OK;
}

void free_memory(const Block *block) noexcept {
    if (block->backend == BACKEND_HEAP) {
        free(block->data);
        return;
    }
    munmap(block->data, block->capacity);
    if (block->fd >= 0) close(block->fd);
}

}  // namespace

bool take_pages(int fd, std::size_t nbytes) noexcept {
    if (nbytes == 0) return true;  // posix_fallocate refuses 0 bytes
    int error;
    do {
        error = posix_fallocate(fd, 0, static_cast<off_t>(nbytes));
    } while (error == EINTR);  // pages that were already allocated stay allocated
    errno = error;  // posix_fallocate does not set errno
    return error == 0;
}

int make_memfd(const char *name, std::size_t nbytes, std::size_t taken, int seals) noexcept {
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(nbytes)) == 0 && take_pages(fd, taken) &&
        fcntl(fd, F_ADD_SEALS, seals) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

// If the other process punched a hole, the next write here would need new pages, and raise SIGBUS if memory is short.
// The seal refuses punching (by fallocate or MADV_REMOVE) and does not affect existing mappings. Afterwards the pages
// of earlier holes are allocated again.
bool keep_pages(int fd, std::size_t nbytes) noexcept {
    const bool sealed = fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
    if (!sealed && errno != EINVAL) return false;  // Linux before 5.1 has no F_SEAL_FUTURE_WRITE
    return take_pages(fd, nbytes);
}

// ---- the pool -------------------------------------------------------------------------------

Block *BufferPool::lease(std::size_t nbytes, int backend, bool fresh) noexcept {
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
        if (!allocate(block, nbytes)) {
            delete block;
            return nullptr;
        }
        misses_.fetch_add(1, std::memory_order_relaxed);
    }
    hand_out(block, nbytes);
    return block;
}

Block *BufferPool::lease_body(std::size_t nbytes, bool fresh) noexcept {
    Block *block = nullptr;
    if (nbytes > lendable_above.load(std::memory_order_relaxed)) block = lease(nbytes, BACKEND_MEMFD, fresh);
    if (block == nullptr) return lease(nbytes, BACKEND_HEAP, fresh);
    std::memset(block->data, 0, BLOCK_ALIGNMENT);  // the alignment gap before a body must not expose old bytes
    return block;
}

// Clears the rest of the block, so that the other process sees no bytes of an earlier body.
bool BufferPool::lend(Block *block) noexcept {
    if (block->backend != BACKEND_MEMFD || block->lent) return block->lent;
    const std::size_t end = std::min(whole_pages(block->size), block->capacity);
    std::memset(block->data + block->size, 0, end - block->size);
    give_back(block, block->size, block->capacity);
    block->lent = fcntl(block->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    return block->lent;
}

Block *BufferPool::adopt(int fd, std::size_t nbytes, AdoptError *error) noexcept {
    Block *block = new (std::nothrow) Block;
    *error = ADOPT_MAP;  // also if memory for the block's head is short
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

void BufferPool::give_back(Block *block, std::size_t begin, std::size_t end) noexcept {
    const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(block->data);
    const std::uintptr_t first = (start + begin + page - 1) & ~(page - 1);
    const std::uintptr_t last = (start + end) & ~(page - 1);
    if (first >= last || (block->backend != BACKEND_HEAP && block->backend != BACKEND_MEMFD)) return;
    madvise(reinterpret_cast<void *>(first), last - first,
            block->backend == BACKEND_HEAP ? MADV_DONTNEED : MADV_REMOVE);
}

void BufferPool::release(Block *block) noexcept {
    if (block->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (block->returned != nullptr) {
        block->returned(block);
        return;
    }
    leased_blocks_.fetch_sub(1, std::memory_order_relaxed);
    leased_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
    // Leased before a fork: a mapping of a memfd or of separate pages is then shared with the parent.
    const bool shared_with_parent = block->generation != generation_.load(std::memory_order_relaxed);
    if (block->backend == BACKEND_BORROWED || block->unwritten || block->lent ||
        (block->backend != BACKEND_HEAP && shared_with_parent)) {
        free_block(block);
        return;
    }
    put(block);
}

namespace {
constexpr unsigned FOR_EVERY_DEVICE = 1;  // cudaHostRegisterPortable
}

void BufferPool::use_pinning(PinFunction pin, UnpinFunction unpin) noexcept {
    unpin_.store(unpin);
    pin_.store(pin);
}

bool BufferPool::pin(Block *block) noexcept {
    if (block->pinned.load(std::memory_order_acquire)) return true;
    const PinFunction pin = pin_.load();
    if (block->backend == BACKEND_HEAP || block->backend == BACKEND_BORROWED || pin == nullptr) return false;
    const std::lock_guard<std::mutex> guard(pinning_);
    if (block->pinned.load(std::memory_order_relaxed)) return true;
    if (pin(block->data, block->capacity, FOR_EVERY_DEVICE) != 0) return false;
    pinned_bytes_.fetch_add(block->capacity, std::memory_order_relaxed);
    block->pinned.store(true, std::memory_order_release);
    return true;
}

void BufferPool::free_block(Block *block) noexcept {
    // Only the process that pinned a block may unpin it: devices do not work across a fork.
    if (block->pinned.load(std::memory_order_acquire) &&
        block->generation == generation_.load(std::memory_order_relaxed)) {
        pinned_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
        const UnpinFunction unpin = unpin_.load();
        if (unpin != nullptr) unpin(block->data);
    }
    free_memory(block);
    delete block;
}

std::uint64_t BufferPool::trim(std::uint64_t idle) noexcept {
    const std::uint64_t now = coarse_now_ns();
    Block *doomed = nullptr;
    {
        std::lock_guard<std::mutex> guard(lock_);
        while (oldest_ != nullptr && now - oldest_->idle_since >= idle) doom(oldest_, &doomed);
    }
    return free_all(doomed);
}

BufferPoolStatistics BufferPool::statistics() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return {leased_blocks_.load(), leased_bytes_.load(), pooled_blocks_, pooled_bytes_,
            cap_bytes.load(),      hits_.load(),         misses_.load(), pinned_bytes_.load()};
}

void BufferPool::after_fork_in_child() noexcept {
    generation_.fetch_add(1, std::memory_order_relaxed);
    pin_.store(nullptr);
    unpin_.store(nullptr);
    pinned_bytes_.store(0);
    Block *doomed = nullptr;
    for (Block *block = newest_, *next; block != nullptr; block = next) {
        next = block->older;
        if (block->backend != BACKEND_HEAP) doom(block, &doomed);
    }
    lock_.unlock();
    free_all(doomed);
}

Block *BufferPool::take(std::size_t nbytes, int backend) noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    Block *block = newest_;
    while (block != nullptr && !fits(block, nbytes, backend)) block = block->older;
    if (block != nullptr) unlink(block);
    return block;
}

// The returned block is the warmest, so older blocks are freed to make room for it.
void BufferPool::put(Block *block) noexcept {
    const std::uint64_t cap = cap_bytes.load(std::memory_order_relaxed);
    const std::uint64_t idle = idle_nanoseconds.load(std::memory_order_relaxed);
    if (block->capacity > cap) {
        free_block(block);
        return;
    }
    Block *doomed = nullptr;
    {
        std::lock_guard<std::mutex> guard(lock_);
        block->idle_since = coarse_now_ns();
        while (oldest_ != nullptr && (pooled_blocks_ >= MOST_BLOCKS || pooled_bytes_ + block->capacity > cap ||
                                      block->idle_since - oldest_->idle_since >= idle))
            doom(oldest_, &doomed);
        block->newer = nullptr;
        block->older = newest_;
        (newest_ != nullptr ? newest_->newer : oldest_) = block;
        newest_ = block;
        ++pooled_blocks_;
        pooled_bytes_ += block->capacity;
    }
    free_all(doomed);
}

void BufferPool::unlink(Block *block) noexcept {
    (block->newer != nullptr ? block->newer->older : newest_) = block->older;
    (block->older != nullptr ? block->older->newer : oldest_) = block->newer;
    block->newer = block->older = nullptr;
    --pooled_blocks_;
    pooled_bytes_ -= block->capacity;
}

void BufferPool::doom(Block *block, Block **doomed) noexcept {
    unlink(block);
    block->older = *doomed;
    *doomed = block;
}

std::uint64_t BufferPool::free_all(Block *doomed) noexcept {
    std::uint64_t freed = 0;
    while (doomed != nullptr) {
        Block *next = doomed->older;
        freed += doomed->capacity;
        free_block(doomed);
        doomed = next;
    }
    return freed;
}

BufferPool &process_pool() noexcept {
    static BufferPool *pool = [] {
        static BufferPool *made = new BufferPool;
        pthread_atfork([] { made->before_fork(); }, [] { made->after_fork_in_parent(); },
                       [] { made->after_fork_in_child(); });
        return made;
    }();
    return *pool;
}

}  // namespace ksrv
