"""The header of the PROXY protocol, for other native modules."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr_storage:
        unsigned short ss_family


cdef extern from "http/proxy_header.hpp" namespace "ksrv" nogil:
    cdef enum class ProxyVersions(unsigned char):
        off
        v1
        v2

    cdef enum class ProxyVerdict(unsigned char):
        incomplete
        whole
        absent
        malformed

    cdef enum class ProxyFault(unsigned char):
        none

    cdef struct Network:
        unsigned char address[16]
        unsigned bits

    cdef cppclass CProxyRules "ksrv::ProxyRules":
        ProxyVersions versions
        cbool trusts_all
        vector[Network] trusted
        cbool trusts(const sockaddr_storage &peer) noexcept

    cdef cppclass ProxySource:
        size_t length
        cbool names_client
        sockaddr_storage peer
        uint32_t peer_length
        ProxyFault fault

    ProxyVerdict read_header "ksrv::read_proxy_header"(
        const unsigned char *data, size_t filled, ProxyVersions accepted, ProxySource *source
    ) noexcept
    const char *proxy_fault_text(ProxyFault fault) noexcept


cdef class ProxyRules:
    cdef CProxyRules rules
