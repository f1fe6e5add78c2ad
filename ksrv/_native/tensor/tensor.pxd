"""Tensors for the other compiled modules."""


cdef class Tensor:
    cdef public object name
    cdef public object datatype
    cdef public object shape
    cdef public object data
    cdef object its_parameters  # None until first read, and then if empty


cdef Tensor ksrv_tensor(object name, object datatype, object shape, object data)
