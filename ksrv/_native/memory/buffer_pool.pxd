"""The buffer pool for other compiled modules, all of it without the GIL."""

from native.memory.buffer_pool cimport Block as CBlock


cdef class Block:
    cdef object __weakref__
    cdef CBlock *block
    cdef CBlock *_leased(self) except NULL


# Turns the caller's reference into a Python object. The caller must not release the reference.
cdef Block ksrv_wrap(CBlock *block)
