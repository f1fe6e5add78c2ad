"""Batches of queued requests, for the other compiled modules."""

from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

from native.infer.model_signature cimport InputSignature
from native.queue.stats cimport ReplyStage
from native.server.fast_rows cimport RowWriter

from ksrv._native.batch.batch cimport ExecutorInputs, ExecutorOutputs
from ksrv._native.queue.request_queue cimport Queue
from ksrv._native.queue.stats cimport Stats
from ksrv._native.server.model_endpoint cimport ModelEndpoint


cdef enum:
    STAGES = 16  # an answer with this many stages or more is left to Python


cdef class RequestBatch(ExecutorInputs):
    cdef public Py_ssize_t room   # the most rows that it may grow to
    cdef Py_ssize_t joined        # how many of its requests have their rows in the blocks
    cdef ModelEndpoint endpoint   # of the fast-path requests, or None
    cdef list forms               # for each input its form, see `RowForm` in padding.py
    cdef list blocks              # for each input its block, or None; None before rows are joined
    # The native forms of the inputs: of the endpoint, or of `parsed_signatures`.
    cdef const vector[InputSignature] *signatures
    cdef vector[InputSignature] parsed_signatures
    cdef uint64_t block_rows, count  # rows that the blocks have room for, and rows that they have
    cdef uint64_t row_length      # of padded rows
    # The largest first dimension of an input's array; not the rows if an input is not batched.
    cdef uint64_t largest
    cdef public object model
    cdef public object lease      # returns a writable block
    # The record of a batch that was dispatched to a handler process, else None.
    cdef object dispatched
    cdef public int attempts      # how many executors died while they ran the batch
    cdef public int64_t spent_ns  # to join the rows
    cdef public int64_t ran_ns    # in the executor
    # The counts of the references to the inputs, taken before the batch ran; None without counts.
    cdef readonly object references

    cdef list read  # the requests in Python, once a handler has asked for them, else None

    # Joins the rows of the requests that have not joined yet, and sets the tensors.
    # `counts_references`: count the references to the inputs, so that `answer` can tell whether an
    # output refers to an input. The references of parsed requests are always counted. Without
    # counts, an output in the memory of an input is copied before it is sent.
    cdef int prepare(self, bint counts_references) except -1

    # Answers the requests: natively if all came by the fast path and the outputs fit it, else in
    # Python (`model.answer`). Returns whether the answers were copied from the outputs.
    cdef bint reply(self, ExecutorOutputs outputs, Queue queue, Stats stats, bint later) except -1

    # Copies the rows of added requests into the batch's blocks. Returns the requests whose images
    # cannot be decoded, with their errors.
    cdef list _join(self)


cdef RequestBatch ksrv_new_batch(object model, object lease, list handles)

# Makes resize plans for image sizes that occur for the first time.
cdef int ksrv_plan_images(ModelEndpoint endpoint, RowWriter &writer) except -1

# Whether a request has encoded images.
cdef bint ksrv_has_images(object handle) except -1

# Writes the stages of a batch and their times, first the assembly. Returns their number, at most
# STAGES.
cdef int ksrv_stages(ReplyStage *stages, RequestBatch batch, ExecutorOutputs outputs) except -1
