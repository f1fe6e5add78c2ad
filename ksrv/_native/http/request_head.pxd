"""The request-head classifier, for other native modules."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "base/own_host.hpp" namespace "ksrv" nogil:
    bint is_own_host_text "ksrv::is_own_host"(const unsigned char *text, size_t length) noexcept
    bint is_foreign_host_text "ksrv::is_foreign_host"(
        const unsigned char *text, size_t length
    ) noexcept


cdef extern from "http/request_head.hpp" namespace "ksrv" nogil:
    cdef enum:
        SCHEME_NAMES
        SCHEME_NAME_BYTES
        MOUNT_BYTES

    cdef enum class Verdict(unsigned char):
        incomplete
        native
        app
        refused

    cdef enum class HeadFault(unsigned char):
        none

    cdef enum class Route(unsigned char):
        none
        infer
        live
        ready
        server
        metadata
        model_ready

    cdef struct Span:
        uint32_t offset
        uint32_t length

    cdef cppclass HeadLimits:
        size_t head
        size_t fields
        size_t request_line
        size_t field_size
        uint64_t body
        uint64_t json
        size_t chunks
        size_t longest_head
        bint compression
        bint origins
        bint own_hosts
        size_t scheme_count
        char scheme[SCHEME_NAMES][SCHEME_NAME_BYTES]
        size_t scheme_length[SCHEME_NAMES]
        size_t mount_length
        char mount[MOUNT_BYTES]

    cdef cppclass Head:
        Route route
        HeadFault fault
        Span name
        Span version
        uint32_t length
        uint32_t fields
        uint64_t content_length
        uint64_t json_length
        bint has_json_length
        bint close
        bint http_1_0
        bint chunked
        bint expects_continue
        bint question

    bint is_host_text "ksrv::is_host"(const unsigned char *text, size_t length) noexcept

    Verdict classify "ksrv::classify_head"(
        const unsigned char *data, size_t filled, size_t *searched,
        const HeadLimits &limits, Head *head
    ) noexcept


cdef class HeadRules:
    cdef HeadLimits limits
