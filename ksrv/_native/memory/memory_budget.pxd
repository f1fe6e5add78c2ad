"""C++ declarations for memory_budget.hpp. The functions need neither the GIL nor a lock."""

from native.memory.memory_budget cimport MemoryBudget as CMemoryBudget


cdef class MemoryBudget:
    cdef CMemoryBudget *budget
