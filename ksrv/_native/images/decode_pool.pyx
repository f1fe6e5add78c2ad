# Safe without the GIL: a mutex guards the pool's tasks.
# cython: freethreading_compatible = True
"""A pool of threads that decode a batch of images together with the calling thread.

cv2 does the decoding, called from `ksrv.images.preparer`. This module does not import cv2.
"""

from cpython.ref cimport PyObject
cimport cython
from libc.stdint cimport uint64_t

if not cython.compiled:
    from collections.abc import Callable


# One call of `run`, for all threads that work on it. The caller's stack keeps it alive.
cdef struct Job:
    PyObject *work      # the function
    PyObject *failures  # the list of exceptions
    size_t count
    size_t chunks


cdef void _run_chunk(void *context, size_t chunk) noexcept nogil:
    cdef Job *job = <Job *>context
    # If the count does not divide evenly, the last chunks are one longer.
    cdef size_t start = job.count * chunk // job.chunks
    cdef size_t stop = job.count * (chunk + 1) // job.chunks
    with gil:
        try:
            (<object>job.work)(start, stop)
        except BaseException as error:
            (<list>job.failures).append(error)


cdef class DecodePool:
    """Threads that decode a batch together with the calling thread.

    Args:
        threads: How many threads work on one batch, including the caller; at least 1.

    Raises:
        ValueError: `threads` is below 1.
    """

    def __cinit__(self, Py_ssize_t threads):
        if threads < 1:
            raise ValueError(f"a pool has 1 thread or more, not {threads}")
        self.pool = new CDecodePool(<size_t>threads)

    def __dealloc__(self):
        # Release the GIL while joining, because a helper may be waiting for it.
        cdef CDecodePool *pool = self.pool
        if pool != NULL:
            with nogil:
                del pool

    @property
    def threads(self) -> int:
        """How many threads work on one batch."""
        return self.pool.threads()

    def chunks(self, size_t count, uint64_t work_ns) -> int:
        """Return into how many ranges to divide the work. 1 if this thread alone is fastest.

        Args:
            work_ns: How long one thread takes for all `count` pictures.
        """
        return self.pool.chunks(count, work_ns)

    def run(self, work: Callable[[int, int], object], Py_ssize_t count, Py_ssize_t chunks) -> None:
        """Divide `count` items into ranges, and call `work(start, stop)` for each range.

        Args:
            work: Called on several threads at once, with the GIL. Faster only if it releases the
                GIL.
            chunks: The number of ranges. With 1, everything runs on this thread.

        Raises:
            ValueError: A negative count.
            BaseException: The first exception that `work` raised. All other ranges still ran.
        """
        cdef Job job
        cdef list failures = []
        if count < 0:
            raise ValueError(f"there are 0 items or more, not {count}")
        if count == 0:
            return
        job.work = <PyObject *>work
        job.failures = <PyObject *>failures
        job.count = <size_t>count
        job.chunks = <size_t>max(1, min(chunks, count))
        with nogil:
            self.pool.run(job.chunks, _run_chunk, &job)
        if failures:
            raise failures[0]
