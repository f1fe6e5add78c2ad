"""Batches for the other compiled modules."""


cdef class BatchInputs:
    cdef public dict tensors
    cdef public Py_ssize_t rows
    cdef public object requests
    cdef public bint explain
    cdef public object emit
    cdef public list handles
    cdef public bint beside_others
    cdef public object inherited


cdef class BatchOutputs:
    cdef public list tensors
    cdef public dict failures
    cdef public dict timings
    cdef public dict headers
    cdef public dict parameters
    cdef public bint exclusive
    cdef public object only
    cdef public dict torchserve


cdef BatchOutputs ksrv_batch_outputs(list tensors, dict timings)
