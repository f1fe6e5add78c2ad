# It relies on the GIL: whether the store is in place. Without the GIL there is no pymalloc.
"""CPython's memory for small objects, kept in the process between requests.

pymalloc takes memory from the kernel in arenas of 1 MiB and unmaps each as soon as no object is
left in it. A request of 100,000 strings takes eight and gives them back when it ends, and the next
one pays a page fault for every 4 KiB: two thirds of the time that it takes to decode.
`keep_arenas` puts a small store between pymalloc and the kernel.
"""

from libc.stdint cimport uint64_t


cdef extern from "Python.h":
    ctypedef struct PyObjectArenaAllocator:
        void *ctx
        void *(*alloc)(void *ctx, size_t size) noexcept nogil
        void (*free)(void *ctx, void *data, size_t size) noexcept nogil

    void PyObject_GetArenaAllocator(PyObjectArenaAllocator *allocator)
    void PyObject_SetArenaAllocator(PyObjectArenaAllocator *allocator)


cdef extern from "memory/kept_arenas.hpp" namespace "ksrv" nogil:
    cdef cppclass KeptArenas:
        void *take(size_t size) noexcept
        bint keep(void *data, size_t size) noexcept
        void *drop(size_t *size) noexcept
        void set_cap(size_t cap) noexcept
        size_t bytes() noexcept
        uint64_t reused() noexcept


# Never destroyed: the interpreter frees its arenas after this module is gone.
cdef KeptArenas *kept = new KeptArenas()
cdef PyObjectArenaAllocator before
cdef bint installed = False


cdef void *_alloc(void *ctx, size_t size) noexcept nogil:
    cdef void *found = kept.take(size)
    return found if found != NULL else before.alloc(before.ctx, size)


cdef void _free(void *ctx, void *data, size_t size) noexcept nogil:
    # An arena from before the store was installed is of the same kind, and is kept alike.
    if not kept.keep(data, size):
        before.free(before.ctx, data, size)


def keep_arenas(size_t cap_bytes=32 << 20) -> None:
    """Keep the arenas that pymalloc frees, for the whole process and until it ends.

    A process that ksrv owns calls it when it starts; nothing else should. Where Python does not use
    pymalloc (PYTHONMALLOC=malloc, free-threaded builds) it changes nothing.

    Args:
        cap_bytes: What is kept at most; arenas above it go back to the kernel as ever.
    """
    global installed
    cdef PyObjectArenaAllocator own
    kept.set_cap(cap_bytes)
    if installed:
        return
    PyObject_GetArenaAllocator(&before)
    own.ctx = NULL
    own.alloc = _alloc
    own.free = _free
    PyObject_SetArenaAllocator(&own)
    installed = True


def trim() -> int:
    """Give every kept arena back to the kernel.

    Returns:
        How many bytes that were.
    """
    cdef size_t size = 0
    cdef size_t freed = 0
    cdef void *data
    while True:
        data = kept.drop(&size)
        if data == NULL:
            return freed
        before.free(before.ctx, data, size)
        freed += size


def statistics() -> dict[str, int]:
    """Return what is kept now, and how often a kept arena was used again.

    Returns:
        `kept_bytes` and `reused`.
    """
    return {"kept_bytes": kept.bytes(), "reused": kept.reused()}
