from libc.stdint cimport uint64_t


cdef extern from "images/decode/memory.hpp" namespace "ksrv" nogil:
    cdef enum class DecodeRoom(int):
        taken
        wait
        none
        too_large

    cdef cppclass CDecodeMemory "ksrv::DecodeMemory":
        DecodeRoom take(uint64_t nbytes) noexcept
        void give_back(uint64_t nbytes) noexcept
        int waiting() noexcept

    CDecodeMemory &process_decode_memory() noexcept
