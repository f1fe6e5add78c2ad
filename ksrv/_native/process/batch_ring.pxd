"""The memory that a worker and a handler process share for batches, for other compiled modules."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as cbool

from ksrv._native.memory.buffer_pool cimport CBlock
from ksrv._native.tensor.datatype cimport RANK_LIMIT


cdef extern from "process/batch_ring.hpp" namespace "ksrv" nogil:
    cdef enum:
        RING_OUTPUTS
        RING_STAGES
        RING_NAME
        RING_STAGE_NAME
        RING_OUTPUTS_HERE
        RING_ON_CHANNEL

    const size_t RING_BATCH_BYTES
    const size_t RING_ANSWER_BYTES
    const size_t RING_LARGE_BYTES
    size_t ring_aligned(size_t size) noexcept

    cdef enum Bell:
        BELL_RANG
        BELL_INTERRUPTED

    cdef cppclass RingFlag "std::atomic<bool>":
        cbool load() noexcept

    cdef struct RingRun:
        uint64_t number
        uint64_t rows
        uint64_t row_length
        uint32_t requests
        uint32_t inputs
        uint32_t text_bytes
        uint32_t first_row
        uint32_t large

    cdef struct RingRequest:
        uint64_t row_length
        int64_t deadline_ns
        uint32_t rows
        uint32_t id_length
        uint32_t head_length
        uint32_t wanted_count
        uint8_t *wanted

    cdef struct RingStage:
        char name[RING_STAGE_NAME]
        uint64_t ns

    cdef struct RingOutput:
        uint64_t offset
        uint64_t nbytes
        int64_t shape[RANK_LIMIT]
        uint8_t datatype
        uint8_t rank
        uint16_t name_length
        char name[RING_NAME]

    cdef struct RingAnswer:
        uint64_t number
        int64_t began_ns
        int64_t ended_ns
        uint32_t form
        uint32_t outputs
        uint32_t stages
        RingStage stage[RING_STAGES]
        RingOutput output[RING_OUTPUTS]

    bint is_stage_name(const char *name) noexcept

    cdef cppclass Ring:

        @staticmethod
        Ring *make() noexcept

        @staticmethod
        Ring *map(int fd) noexcept
        RingFlag used
        unsigned char *batch(uint64_t number) noexcept
        unsigned char *answer(uint64_t number) noexcept
        const unsigned char *answer_rows(uint64_t number) noexcept
        void release() noexcept
        CBlock *lease(size_t nbytes) noexcept
        int number_of(const CBlock *block) noexcept
        void name(int slot) noexcept
        void unname(int slot) noexcept
        CBlock *receive(uint32_t slot) noexcept
        bint seal() noexcept
        int fd() noexcept
        void close_fd() noexcept

    Bell wait_for_batch(
        Ring &ring, int channel, uint64_t completed, int64_t spin_ns
    ) noexcept
    void complete_batch(Ring &ring, int channel, uint64_t number) noexcept


cdef class SharedMemory:
    cdef Ring *ring


cdef class WorkerRing(SharedMemory):
    cdef int channel
    cdef public object batches
