"""The arena's C interface: what the other compiled modules cimport, all of it without the GIL.

The functions live in buffer_pool.pyx, so that one extension module owns the process's only pool.
"""

cdef extern from "memory/buffer_pool.hpp" namespace "ksrv" nogil:
    cdef enum Backend:
        BACKEND_HEAP
        BACKEND_MEMFD
        BACKEND_ADOPTED

    cdef cppclass CBlock "ksrv::Block":
        unsigned char *data
        size_t capacity
        size_t size
        int fd
        int backend


cdef class Block:
    cdef CBlock *block
    cdef CBlock *_leased(self) except NULL


# A lease starts with one reference, the caller's; NULL means that there is no memory.
cdef CBlock *ksrv_lease(size_t nbytes, int backend) noexcept nogil
cdef void ksrv_retain(CBlock *block) noexcept nogil
cdef void ksrv_release(CBlock *block) noexcept nogil
cdef void ksrv_count_copy(size_t nbytes) noexcept nogil

# Turns one reference of the caller into a Python object; the caller must not release it afterwards.
cdef Block ksrv_wrap(CBlock *block)
