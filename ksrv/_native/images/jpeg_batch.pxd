"""Resize plans for the rows of a batch, used by fast-path batches."""

from libc.stdint cimport uint32_t, uint64_t

from ksrv._native.images.convert_pixels cimport Coefficients, Conversion, PixelTarget
from ksrv._native.images.decode_memory cimport CDecodeMemory
from ksrv._native.images.decode_pool cimport CDecodePool
from ksrv._native.images.jpeg_decoder cimport Decoded, JpegJob
from ksrv._native.queue.request_handle cimport AtomicInt
from ksrv._native.images.row_resize cimport ResizeKind, ResizeWindow


cdef extern from "images/resize/jpeg_batch.hpp" namespace "ksrv" nogil:
    cdef cppclass JpegRow:
        JpegJob jpeg
        ResizeKind kind
        ResizeWindow window
        PixelTarget target
        const Coefficients *coefficients
        unsigned char *row
        size_t row_bytes
        size_t part_offset
        unsigned char *border
        size_t border_bytes
        uint64_t decode_ns
        uint64_t decoder_bytes
        int orientation
        const AtomicInt *ended
        Decoded result
        bint passed_over

    cdef cppclass CRowPlans "ksrv::RowPlans":
        void keep(
            uint32_t height, uint32_t width, uint32_t channels, const JpegRow &plan
        ) except +
        void forget() noexcept

    void decode_jpegs(
        CDecodePool &pool, CDecodeMemory &memory, JpegRow *jpegs, size_t count
    ) noexcept


cdef class RowPlan:
    cdef JpegRow job
    cdef Conversion conversion
    cdef tuple shape


cdef class PlanTable:
    cdef object make
    cdef dict plans
    cdef Py_ssize_t most
    cdef CRowPlans native  # the same plans, for decoding without Python
