from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "tls/openssl.hpp" namespace "ksrv" nogil:
    cdef cppclass OpenSsl:
        const char *OpenSSL_version(int part) noexcept

    OpenSsl openssl
    const char *load_openssl() noexcept


cdef extern from "tls/ticket_keys.hpp" namespace "ksrv" nogil:
    cdef cppclass CTicketKeys "ksrv::TicketKeys":
        @staticmethod
        shared_ptr[CTicketKeys] make() noexcept


cdef extern from "tls/tls_context.hpp" namespace "ksrv" nogil:
    cdef cppclass TlsRules:
        string chain
        string key
        string authority
        cbool asks
        cbool demands
        unsigned long verify_flags
        long least_version
        long most_version
        string ciphers
        vector[string] protocols
        shared_ptr[CTicketKeys] ticket_keys

    cdef cppclass CTlsContext "ksrv::TlsContext":
        cbool set_up(const TlsRules &rules, string *why) except +

    ctypedef CTlsContext const_tls "const ksrv::TlsContext"


cdef class TicketKeys:
    cdef shared_ptr[CTicketKeys] keys


cdef class TlsContext:
    cdef shared_ptr[const_tls] context
