# Counts that are atomic.
# cython: freethreading_compatible = True
"""The process's one budget of bytes, for Python and for the other compiled modules."""

from libc.stdint cimport uint64_t

SMALL_REQUEST: int = SMALL_REQUEST_BYTES
SMALL_SHARE: int = SMALL_SHARE_PARTS
"""One part in so many is kept for requests of at most SMALL_REQUEST bytes."""


cdef class MemoryBudget:
    """Bytes that requests and answers may hold together; see `PROCESS` for the process's own.

    Args:
        bound: The bound in bytes.
    """

    def __cinit__(self, uint64_t bound=<uint64_t>-1):
        self.budget = new CMemoryBudget()
        self.budget.set_bound(bound)

    def __dealloc__(self):
        if self.budget != &process_budget():
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
        """Return what one request may hold when it is alone.

        Args:
            small: Whether the request has at most SMALL_REQUEST bytes.
        """
        return self.budget.most(small)

    def reserve(self, uint64_t nbytes, *, bint small=False) -> bool:
        """Take bytes if there is room for them; `give_back` is due for each call that returns True.

        Args:
            small: Whether the whole request that they belong to has at most SMALL_REQUEST bytes; it
                may then use the share that is kept for such requests.
        """
        return self.budget.reserve(nbytes, small)

    def give_back(self, uint64_t nbytes) -> None:
        """Give reserved bytes back.

        Args:
            nbytes: How many of the reserved bytes.
        """
        self.budget.give_back(nbytes)

    def reserve_answer(self, uint64_t nbytes) -> AnswerBytes | None:
        """Take the bytes of an answer that is about to be sent.

        Returns:
            What holds them until its `close`, or None where there is no room. The only answer that
            finds none is let through, beside the bound.
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


cdef class AnswerBytes:
    """The bytes of one answer, held until `close` or until this object goes."""

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


cdef MemoryBudget _shared():
    cdef MemoryBudget shared = MemoryBudget()
    del shared.budget
    shared.budget = &process_budget()
    return shared


PROCESS: MemoryBudget = _shared()
