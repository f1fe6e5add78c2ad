from libc.stdint cimport uint64_t


cdef extern from "images/decode/pool.hpp" namespace "ksrv" nogil:
    ctypedef void (*ChunkFunction)(void *context, size_t chunk) noexcept nogil

    cdef cppclass CDecodePool "ksrv::DecodePool":
        CDecodePool(size_t threads)
        size_t threads()
        size_t chunks(size_t count, uint64_t work_ns) noexcept
        void run(size_t chunks, ChunkFunction function, void *context) noexcept


cdef class DecodePool:
    cdef CDecodePool *pool
