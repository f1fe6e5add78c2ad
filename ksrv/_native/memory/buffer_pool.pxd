"""The buffer pool for other compiled modules, all of it without the GIL."""

from libc.stdint cimport uint64_t


cdef extern from "memory/buffer_pool.hpp" namespace "ksrv" nogil:
    cdef enum Backend:
        BACKEND_HEAP
        BACKEND_MEMFD
        BACKEND_PAGES

    cdef enum AdoptError:
        ADOPT_OK
        ADOPT_SIZE
        ADOPT_SEALS

    ctypedef int (*PinFunction)(void *data, size_t nbytes, unsigned flags) noexcept nogil
    ctypedef int (*UnpinFunction)(void *data) noexcept nogil

    cdef cppclass AtomicFlag "std::atomic<bool>":
        bint load()

    cdef cppclass CBlock "ksrv::Block":
        unsigned char *data
        size_t capacity
        size_t size
        int fd
        int backend
        AtomicFlag pinned

    cdef struct BufferPoolStatistics:
        uint64_t leased_blocks
        uint64_t leased_bytes
        uint64_t pooled_blocks
        uint64_t pooled_bytes
        uint64_t cap_bytes
        uint64_t hits
        uint64_t misses
        uint64_t pinned_bytes

    cdef cppclass AtomicCounter "std::atomic<std::uint64_t>":
        uint64_t load()
        void store(uint64_t value)
        uint64_t fetch_add(uint64_t value)

    cdef cppclass BufferPool:
        AtomicCounter cap_bytes
        AtomicCounter idle_nanoseconds
        AtomicCounter copied_bytes
        AtomicCounter lendable_above
        CBlock *lease(size_t nbytes, int backend, bint fresh) noexcept
        CBlock *lease_body(size_t nbytes, bint fresh) noexcept
        bint lend(CBlock *block) noexcept
        CBlock *adopt(int fd, size_t nbytes, AdoptError *error) noexcept
        void retain(CBlock *block) noexcept
        void release(CBlock *block) noexcept
        void use_pinning(PinFunction pin, UnpinFunction unpin) noexcept
        bint pin(CBlock *block) noexcept
        uint64_t trim(uint64_t idle) noexcept
        BufferPoolStatistics statistics() noexcept

    BufferPool &process_pool() noexcept
    long holders_of(const CBlock *block) noexcept
    void retain_block "ksrv::BufferPool::retain"(CBlock *block) noexcept
    void count_copied "ksrv::count_copy"(size_t nbytes) noexcept
    bint take_pages(int fd, size_t nbytes) noexcept


cdef class Block:
    cdef object __weakref__
    cdef CBlock *block
    cdef CBlock *_leased(self) except NULL


# Turns the caller's reference into a Python object. The caller must not release the reference.
cdef Block ksrv_wrap(CBlock *block)
