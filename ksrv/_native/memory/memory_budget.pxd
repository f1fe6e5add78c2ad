"""C++ declarations for memory_budget.hpp. The functions need neither the GIL nor a lock."""

from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool


cdef extern from "memory/memory_budget.hpp" namespace "ksrv" nogil:
    cdef enum class AnswerRoom(unsigned char):
        none
        shared
        beside

    cdef cppclass CMemoryBudget "ksrv::MemoryBudget":
        CMemoryBudget()
        uint64_t bound() noexcept
        void set_bound(uint64_t nbytes) noexcept
        uint64_t most(cbool small) noexcept
        uint64_t held() noexcept
        cbool reserve(uint64_t nbytes, cbool small) noexcept
        void take(uint64_t nbytes) noexcept
        void give_back(uint64_t nbytes) noexcept
        AnswerRoom reserve_answer(uint64_t nbytes) noexcept
        void give_back_answer(uint64_t nbytes, AnswerRoom room) noexcept

    CMemoryBudget &process_budget() noexcept

    const uint64_t SMALL_REQUEST_BYTES "ksrv::MemoryBudget::SMALL_REQUEST"
    const uint64_t SMALL_SHARE_PARTS "ksrv::MemoryBudget::SMALL_SHARE"


cdef class MemoryBudget:
    cdef CMemoryBudget *budget
