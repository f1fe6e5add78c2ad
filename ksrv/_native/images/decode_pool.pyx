# The pool's tasks are behind a mutex.
# cython: freethreading_compatible = True
"""The threads that decode a batch of images, of which the caller is one.

The decoding itself is cv2's and is called from `ksrv.images.preparer`; this module does not import
cv2.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t

if not cython.compiled:
    from collections.abc import Callable


cdef struct Share:
    PyObject *work
    PyObject *failure
    size_t count
    size_t chunks


cdef void _run_chunk(void *context, size_t chunk) noexcept nogil:
    cdef Share *share = <Share *>context
    # The first chunks are one longer when the count does not divide evenly.
    cdef size_t start = share.count * chunk // share.chunks
    cdef size_t stop = share.count * (chunk + 1) // share.chunks
    with gil:
        try:
            (<object>share.work)(start, stop)
        except BaseException as error:
            (<list>share.failure).append(error)


cdef class DecodePool:
    """Threads that decode batches, the caller's among them.

    Args:
        threads: How many threads work on one batch, the caller included; 1 or more.

    Raises:
        ValueError: There is no thread.
    """

    def __cinit__(self, Py_ssize_t threads):
        if threads < 1:
            raise ValueError(f"a pool has 1 thread or more, not {threads}")
        self.pool = new CDecodePool(<size_t>threads)

    def __dealloc__(self):
        # Helpers that wait for the GIL must get it before they can be joined.
        cdef CDecodePool *pool = self.pool
        if pool != NULL:
            with nogil:
                del pool

    @property
    def threads(self) -> int:
        """How many threads work on one batch."""
        return self.pool.threads()

    def chunks(self, size_t count, uint64_t work_ns) -> int:
        """Return how many ranges to make of pictures; one where this thread alone is the quickest.

        Args:
            work_ns: How long one thread takes to decode them.
        """
        return self.pool.chunks(count, work_ns)

    def run(self, work: Callable[[int, int], object], Py_ssize_t count, Py_ssize_t chunks) -> None:
        """Call `work(start, stop)` until the ranges have covered `count` items.

        Args:
            work: Called on several threads at once, with the GIL; it pays when it releases it.
            chunks: How many ranges to make of them; with 1, everything runs on this thread.

        Raises:
            ValueError: A negative count.
            BaseException: What `work` raised first; the other ranges have run all the same.
        """
        cdef Share share
        cdef list failures = []
        if count < 0:
            raise ValueError(f"there are 0 items or more, not {count}")
        if count == 0:
            return
        share.work = <PyObject *>work
        share.failure = <PyObject *>failures
        share.count = <size_t>count
        share.chunks = <size_t>max(1, min(chunks, count))
        with nogil:
            self.pool.run(share.chunks, _run_chunk, &share)
        if failures:
            raise failures[0]
