"""The decoder of chunked bodies, for other native modules."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool


cdef extern from "http/chunked_body.hpp" namespace "ksrv" nogil:
    cdef enum class ChunkFault(unsigned char):
        none
        size
        size_bits
        end
        count
        length
        trailer

    cdef cppclass ChunkDecoder:
        ChunkDecoder()
        void begin(size_t most_chunks) noexcept
        size_t read(const unsigned char *data, size_t length) noexcept
        uint64_t run() noexcept
        void take(uint64_t count) noexcept
        cbool ended() noexcept
        ChunkFault fault() noexcept
        uint64_t announced() noexcept
        const unsigned char *shown() noexcept
        size_t shown_length() noexcept
        uint64_t most_bytes
