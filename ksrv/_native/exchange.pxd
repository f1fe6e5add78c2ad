"""Exchanges for the other compiled modules."""

from ksrv._native.door cimport CDoor, Connection


cdef class Exchange:
    cdef object owner  # keeps the door
    cdef CDoor *door
    cdef Connection *connection
    cdef readonly str model
    cdef readonly str version
    cdef readonly str header_length
    cdef readonly object body
    cdef readonly object announced
    cdef readonly bytes head


cdef Exchange ksrv_exchange(object owner, CDoor *door, Connection *connection)
