# Needs the GIL: several threads change `servers` and `running`.
"""The event loop of a worker: the I/O threads that serve the connections of all its servers."""

from native.base.gil_gate cimport enter_gil_gate, leave_gil_gate


cdef void _hold_gil(void (*work)(CEventLoop *) noexcept, CEventLoop *loop) noexcept nogil:
    """Call a function with the GIL. The loop itself does not know Python."""
    enter_gil_gate()
    _work(work, loop)


cdef void _work(void (*work)(CEventLoop *) noexcept, CEventLoop *loop) noexcept with gil:
    leave_gil_gate()
    work(loop)


cdef class EventLoop:
    """The event loop that an `HttpServer` and a `GrpcServer` may share.

    Args:
        threads: The number of I/O threads. Each is a call of `run`.

    Raises:
        ValueError: `threads` is below 1.
        OSError: epoll could not be set up.
    """

    def __cinit__(self, int threads=2):
        if threads < 1:
            raise ValueError("an event loop has at least one thread")
        self.threads = threads
        self.servers = []
        self.loop = new CEventLoop(threads, _hold_gil)
        if self.loop.epoll() < 0:
            raise OSError("the event loop's epoll instance could not be set up")

    def __dealloc__(self):
        del self.loop

    def run(self, int index) -> None:
        """Run I/O thread number `index`, without the GIL, until `stop` is called."""
        self.running += 1
        with nogil:
            self.loop.run(index)
        self.running -= 1
        if self.running == 0:
            self.servers.clear()

    def stop(self) -> None:
        """Make every call of `run` return."""
        with nogil:
            self.loop.stop()

    def stuck(self) -> float:
        """Return how many seconds ago the busiest thread last was in epoll or began a request."""
        return self.loop.stuck_ns() / 1e9
