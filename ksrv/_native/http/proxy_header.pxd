"""The header of the PROXY protocol, for other native modules."""

from native.http.proxy_header cimport ProxyRules as CProxyRules


cdef class ProxyRules:
    cdef CProxyRules rules
