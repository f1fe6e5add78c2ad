"""Shared blocks, for tensor_descriptors.pyx and channel.pyx."""

from libc.stdint cimport uint64_t

from ksrv._native.memory.buffer_pool cimport Block


cdef class Shared:
    cdef uint64_t number
    cdef Block block
    cdef bint announced
    cdef bint named
    cdef bint sealed
    cdef readonly bint lent


cdef class ExportedBlocks:
    cdef object _lock
    cdef list _shared
    cdef list _retired
    cdef uint64_t _next
    cdef public uint64_t most_bytes
    cdef public uint64_t most_kept

    cpdef Block lease(self, size_t nbytes)
    cdef int check_size(self, uint64_t nbytes) except -1
    cdef Block _leased(self, size_t nbytes)
    cdef Block containing(self, const void *data, size_t nbytes)
    cdef Shared lend(self, Block block)
    cdef Shared shared_of(self, Block block)
    cdef list note_named(self, list blocks)
    cdef int returned(self, uint64_t number) except -1
    cdef list retired(self)
    cdef int _trim(self, size_t spared) except -1
    cdef int _disown(self, Shared shared) except -1


cdef class ImportedBlocks:
    cdef dict _by_number
    cdef list _held
    cdef public uint64_t most_bytes
    cdef public uint64_t most_kept
    cdef readonly bint borrows
    cdef dict _arrived

    cdef int borrow(self, uint64_t number, uint64_t nbytes, int descriptor) except -1
    cdef int settle(self, uint64_t number) except -1
    cdef int adopt(self, uint64_t number, uint64_t nbytes, int descriptor) except -1
    cdef Block part(self, uint64_t number, uint64_t offset, uint64_t nbytes)
    cdef int forget(self, uint64_t number) except -1
    cdef list unused(self)
