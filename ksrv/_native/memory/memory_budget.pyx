# Safe without the GIL: counts are atomic.
# cython: freethreading_compatible = True
"""The memory budget of a process, for Python and for the other compiled modules."""

cimport cython
from libc.stdint cimport uint64_t

from native.memory.memory_budget cimport (
    AnswerRoom, SMALL_REQUEST_BYTES, SMALL_SHARE_PARTS, process_budget,
)

SMALL_REQUEST: int = SMALL_REQUEST_BYTES
SMALL_SHARE: int = SMALL_SHARE_PARTS
"""The budget is divided by this number: the part is reserved for requests of at most SMALL_REQUEST
bytes."""


cdef class MemoryBudget:
    """A limit in bytes on the memory of all requests and answers; see `PROCESS`."""

    def __cinit__(self, uint64_t bound=<uint64_t>-1):
        self.budget = new CMemoryBudget()
        self.budget.set_bound(bound)

    def __dealloc__(self):
        if self.budget != &process_budget():  # which is never destroyed
            del self.budget

    @property
    def bound(self) -> int:
        """The bound in bytes."""
        return self.budget.bound()

    @bound.setter
    def bound(self, uint64_t nbytes):
        self.budget.set_bound(nbytes)

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self.budget.held()

    def most(self, *, bint small=False) -> int:
        """Return the most bytes that a single request may reserve when it is alone.

        Args:
            small: Whether the request has at most SMALL_REQUEST bytes.
        """
        return self.budget.most(small)

    def reserve(self, uint64_t nbytes, *, bint small=False) -> bool:
        """Reserve bytes if the budget allows it. Each call that returns True needs a `give_back`.

        Args:
            small: Whether the whole request has at most SMALL_REQUEST bytes. It may then also use
                the part that is reserved for such requests.
        """
        return self.budget.reserve(nbytes, small)

    def give_back(self, uint64_t nbytes) -> None:
        """Give reserved bytes back."""
        self.budget.give_back(nbytes)

    def reserve_answer(self, uint64_t nbytes) -> AnswerBytes | None:
        """Reserve the bytes of an answer before it is sent.

        Returns:
            An object that holds the bytes until its `close`, or None if the budget does not allow
            it. A single answer may exceed the budget, so that a large answer can be sent at all.
        """
        cdef AnswerBytes answer
        cdef AnswerRoom room = self.budget.reserve_answer(nbytes)
        if room == AnswerRoom.none:
            return None
        answer = AnswerBytes.__new__(AnswerBytes)
        answer.owner = self
        answer.nbytes = nbytes
        answer.room = room
        return answer


@cython.no_gc_clear  # __dealloc__ needs the owner
cdef class AnswerBytes:
    """The bytes of one answer, reserved until `close` or until this object is deleted."""

    cdef MemoryBudget owner
    cdef uint64_t nbytes
    cdef AnswerRoom room

    def close(self) -> None:
        """Give the bytes back; further calls do nothing."""
        if self.owner is not None:
            self.owner.budget.give_back_answer(self.nbytes, self.room)
            self.owner = None

    def __dealloc__(self):
        if self.owner is not None:
            self.owner.budget.give_back_answer(self.nbytes, self.room)


cdef MemoryBudget _of_process():
    cdef MemoryBudget budget = MemoryBudget()
    del budget.budget
    budget.budget = &process_budget()
    return budget


PROCESS: MemoryBudget = _of_process()
"""The budget that all servers of this process share."""
