# It relies on the GIL: Python objects change hands between threads, and are freed in turn.
"""Fast-path requests where Python meets them: their handles, their batches and their answers.

The HTTP server puts fast-path requests (v2/fast_request.hpp) into a model's queue by itself. The
thread that takes them gets handles like any other, whose request is made on first use. A batch of
fast-path requests alone gets its arrays here, straight from the received blocks, and small answers
are written into the connections here. For the rest they go the general way.
"""

import logging

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

cimport cython
cimport numpy as cnp

import numpy as np

from ksrv._native.memory.buffer_pool cimport Block, count_copied, ksrv_wrap, retain_block
from ksrv._native.tensor.datatype cimport (
    DT_BYTES, DT_INVALID, Datatype, RANK_LIMIT, datatype_of, item_size_of,
)
from ksrv._native.server.server cimport (
    CHttpServer, Connection, FAST_INPUTS, FAST_OUTPUTS, FastRequest, InputSignature,
)
from ksrv._native.server.exchange cimport Exchange, ksrv_exchange, ksrv_route
from ksrv._native.queue.request_handle cimport (
    CRequest, NativeHandle, ksrv_bind_handle, publish, release_request,
)
from ksrv._native.queue.request_queue cimport (
    PUSH_INLINE, PUSH_OK, Push, Queue, release_queue, retain_queue,
)
from ksrv._native.tensor.tensor cimport ksrv_tensor

from ksrv._native.tensor.datatype import DTYPES as DATATYPE_DTYPES

cnp.import_array()

log = logging.getLogger(__name__)

cdef extern from "server/fast_response.hpp" namespace "ksrv" nogil:
    cdef struct ReplyPart:
        const char *name
        const char *datatype
        size_t name_length
        size_t datatype_length
        Datatype type
        const unsigned char *data
        const Py_ssize_t *shape
        int rank
        int64_t row_bytes

    cdef struct ReplyStage:
        const char *name
        size_t length
        uint64_t nanoseconds

    cbool fits_fast_response(
        const FastRequest &request, const ReplyPart *parts, int part_count, int64_t row
    ) noexcept

    void send_fast_response(
        FastRequest *request, const ReplyPart *parts, int part_count, int64_t row, cbool alone,
        const ReplyStage *stages, int stage_count
    ) noexcept

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_NewFromDescr(
        PyTypeObject *subtype, cnp.dtype descr, int rank, const cnp.npy_intp *sizes,
        const cnp.npy_intp *strides, void *data, int flags, PyObject *like
    )

cdef enum:
    TOGETHER = 64             # requests that one visit pushes together
    STAGES = 16
    WITHOUT_GIL = 131072      # bytes of rows that are copied without the GIL

cdef object ndarray = np.ndarray
cdef tuple DTYPES = DATATYPE_DTYPES


@cython.final
cdef class FastHandle(NativeHandle):
    """The handle of a fast-path request."""

    cdef object _make_request(self):
        return _request_of(<FastRequest *>self.native)


cdef object _request_of(FastRequest *request):
    cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
    retain_block(request.block)
    body = memoryview(ksrv_wrap(request.block))
    return endpoint.route.fast_request(
        endpoint.spec,
        body[request.body_offset:request.body_offset + request.body_length],
        str(request.json_length),
        PyBytes_FromStringAndSize(request.head(), <Py_ssize_t>request.head_length),
    )


cdef void *_fast_request_taken(CRequest *request) except NULL:
    cdef FastHandle handle = FastHandle.__new__(FastHandle)
    ksrv_bind_handle(handle, request)
    Py_INCREF(handle)
    return <void *>handle


cdef void _fast_request_answered(CRequest *answered, void *answer) noexcept:
    cdef FastRequest *request = <FastRequest *>answered
    cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
    cdef Exchange exchange = None
    try:
        exchange = ksrv_exchange(endpoint, request.server, request.turn)
        if isinstance(<object>answer, Exception):
            endpoint.route.refuse(exchange, <object>answer)
        else:
            endpoint.route.deliver(exchange, _request_of(request), <object>answer)
    except BaseException:
        if exchange is None:
            request.server.fail(request.turn)
        else:
            exchange.fail()
        log.exception("an answer on the fast path failed")


cdef void ksrv_serve_fast_requests(CHttpServer *server, Connection *connection) noexcept:
    cdef ModelSignature *signature = connection.fast_request.signature
    cdef ModelEndpoint endpoint = <ModelEndpoint>signature.endpoint
    cdef FastRequest *fast[TOGETHER]
    cdef CRequest *requests[TOGETHER]
    cdef Push results[TOGETHER]
    cdef size_t room = 1, slot = 0, count, inlined, i
    if signature.max_rows:
        room = <size_t>min(signature.max_rows, <uint64_t>TOGETHER)
    count = server.take_fast_requests(connection, fast, room)
    for i in range(count):
        requests[i] = fast[i]
        # Now: once it is pushed, the timer may answer it.
        server.watch(fast[i].turn.connection, requests[i])
    inlined = signature.queue.push_some(requests, count, signature.max_rows, results, &slot)
    for i in range(count):
        if results[i] == PUSH_OK:
            release_request(requests[i])
        elif results[i] != PUSH_INLINE:
            server.unwatch(fast[i].turn.connection)
            ksrv_route(endpoint, server, server.undo_fast_request(fast[i]), endpoint.route)
    if inlined:
        _run_inline(endpoint, slot, requests, results, count)


cdef void _run_inline(
    ModelEndpoint endpoint, size_t slot, CRequest **requests, Push *results, size_t count
) noexcept:
    """Run the requests that claimed a slot; whatever fails, each of them ends."""
    cdef FastHandle handle
    cdef list handles
    cdef bint ours = True
    cdef size_t i
    try:
        handles = []
        for i in range(count):
            if results[i] == PUSH_INLINE:
                handle = FastHandle.__new__(FastHandle)
                ksrv_bind_handle(handle, requests[i])
                handles.append(handle)
        ours = False  # the slot is the instance's to return
        endpoint.run(slot, handles)
    except BaseException:
        if ours:
            endpoint.signature.queue.return_slot(slot)
        for i in range(count):
            if results[i] == PUSH_INLINE:
                _fail(<FastRequest *>requests[i])
        log.exception("a batch on the fast path failed")
    for i in range(count):
        if results[i] == PUSH_INLINE:
            release_request(requests[i])


cdef void _fail(FastRequest *request) noexcept:
    cdef unsigned char won = 0
    cdef CRequest *only = request
    request.signature.queue.finish(&only, 1, &won)
    if won:
        request.server.fail(request.turn)
        publish(request)
        release_request(request)


cdef class ModelEndpoint:
    """The native route to one version of a model: its signature, queue and prepared answers.

    Args:
        queue: The model's.
        spec: Its description; every input has fixed dimensions behind the first.
        timeout_ns: How long a request may take; 0 for ever.
        route: Makes the Python requests that are looked at, and gives answers of the general form:
            see `ksrv.server.http.fast_path.FastPath`.
        run: Called with the number of a claimed slot and the handles to be run on it.
        late: The answer past the deadline: status line, header lines but for the length, and the
            body in three parts: up to the milliseconds, behind them for a request that waited, and
            for one that a handler had.
        json_limit: Bytes of JSON in a request.
        depth: Levels of nesting in it.
        nan_literals: Whether JSON answers hold NaN as a literal; such answers are then Python's.

    Raises:
        ValueError: An input is not of that kind.
    """

    def __cinit__(
        self, Queue queue not None, spec not None, *, int64_t timeout_ns, route, run, tuple late,
        size_t json_limit, unsigned depth, bint nan_literals
    ):
        cdef InputSignature declared
        cdef bytes kind
        cdef uint64_t row
        if not 0 < len(spec.inputs) <= FAST_INPUTS or len(spec.outputs) > 255:
            raise ValueError(f"fast-path requests do not have {len(spec.inputs)} inputs")
        self.signature = new ModelSignature()
        self.signature.endpoint = <void *>self
        self.inputs = []
        self.signature.queue = queue.queue
        retain_queue(queue.queue)
        self.signature.taken = _fast_request_taken
        self.signature.answered = _fast_request_answered
        self.signature.model = spec.name.encode()
        self.signature.version = spec.version.encode()
        self.signature.max_rows = spec.max_batch_size
        self.signature.timeout_ns = timeout_ns
        self.signature.json_limit = json_limit
        self.signature.limits.depth = min(depth, 512)
        self.signature.nan_literals = nan_literals
        for tensor in spec.inputs:
            kind = tensor.datatype.encode()
            declared.name = tensor.name.encode()
            declared.datatype = datatype_of(kind, <size_t>len(kind))
            declared.tail.clear()
            row = item_size_of(declared.datatype)
            if (declared.datatype == DT_BYTES or declared.datatype == DT_INVALID
                    or not tensor.batched):
                raise ValueError(f"the input {tensor.name} may need a look at its values")
            for size in tensor.shape[1:]:
                if not isinstance(size, int) or size < 0:
                    raise ValueError(f"the input {tensor.name} has a variable dimension")
                declared.tail.push_back(size)
                row *= <uint64_t>size
            declared.row_bytes = row
            if declared.tail.size() >= RANK_LIMIT:
                raise ValueError(f"the input {tensor.name} has more than {RANK_LIMIT} dimensions")
            self.signature.inputs.push_back(declared)
            dtype = DTYPES[<int>declared.datatype]
            self.inputs.append((tensor.name, tensor.datatype, dtype, tuple(tensor.shape[1:])))
        for tensor in spec.outputs:
            self.signature.outputs.push_back(<bytes>tensor.name.encode())
        (self.signature.late_status, self.signature.late_fields, self.signature.late_prefix,
         self.signature.late_waiting, self.signature.late_running) = late
        self.queue = queue
        self.spec = spec
        self.route = route
        self.run = run

    def __dealloc__(self):
        if self.signature != NULL:
            if self.signature.queue != NULL:
                release_queue(self.signature.queue)
            self.signature.release()

    @property
    def unused(self):
        """Whether neither an HTTP server's routes nor a request refers to it."""
        return self.signature.refs.load() == 1


def are_fast(list handles not None) -> bool:
    """Tell whether a batch holds fast-path requests only."""
    for handle in handles:
        if type(handle) is not FastHandle:
            return False
    return True


def inputs(list handles not None, lease):
    """Return the arrays of a batch of fast-path requests.

    One request alone is seen where it was received; several are copied once, into their rows.

    Args:
        handles: The batch's requests; at least one.
        lease: Returns a block of so many bytes.

    Returns:
        The inputs by name, and how many rows they have.
    """
    cdef FastRequest *request = <FastRequest *>(<NativeHandle>handles[0]).native
    cdef ModelSignature *signature = request.signature
    cdef ModelEndpoint endpoint = <ModelEndpoint>signature.endpoint
    cdef Block block
    cdef dict found = {}
    cdef uint64_t rows = 0, total = 0
    cdef uint64_t starts[FAST_INPUTS]
    cdef size_t i
    cdef vector[FastRequest *] requests
    cdef NativeHandle handle
    if len(handles) == 1:
        retain_block(request.block)
        block = ksrv_wrap(request.block)
        for i in range(signature.inputs.size()):
            _add_input(
                found, endpoint, i, request.rows, block,
                request.body_offset + request.layout.offsets[i],
            )
        return found, request.rows
    requests.reserve(len(handles))
    for handle in handles:
        requests.push_back(<FastRequest *>handle.native)
        rows += handle.native.rows
    for i in range(signature.inputs.size()):
        starts[i] = total
        total += (rows * signature.inputs[i].row_bytes + 63) & ~<uint64_t>63
    block = lease(total)
    if total > WITHOUT_GIL:
        with nogil:
            _copy_rows(signature, requests, block.block.data, starts)
    else:
        _copy_rows(signature, requests, block.block.data, starts)
    for i in range(signature.inputs.size()):
        _add_input(found, endpoint, i, rows, block, starts[i])
        count_copied(rows * signature.inputs[i].row_bytes)
    return found, rows


cdef int _add_input(
    dict found, ModelEndpoint endpoint, size_t place, uint64_t rows, Block block, uint64_t offset
) except -1:
    cdef InputSignature *declared = &endpoint.signature.inputs[place]
    cdef cnp.npy_intp sizes[RANK_LIMIT]
    cdef size_t i
    name, datatype, dtype, tail = <tuple>endpoint.inputs[place]
    sizes[0] = <cnp.npy_intp>rows
    for i in range(declared.tail.size()):
        sizes[i + 1] = declared.tail[i]
    Py_INCREF(dtype)  # the array takes this reference, and below one to the block
    array = PyArray_NewFromDescr(
        <PyTypeObject *>ndarray, <cnp.dtype>dtype, <int>declared.tail.size() + 1, sizes, NULL,
        block.block.data + offset, cnp.NPY_ARRAY_WRITEABLE, NULL,
    )
    Py_INCREF(block)
    cnp.PyArray_SetBaseObject(array, block)
    found[name] = ksrv_tensor(name, datatype, (sizes[0],) + <tuple>tail, array)
    return 0


cdef void _copy_rows(
    ModelSignature *signature, vector[FastRequest *] &requests, unsigned char *target,
    uint64_t *starts
) noexcept nogil:
    cdef size_t i, k
    cdef uint64_t nbytes
    cdef unsigned char *at
    for i in range(signature.inputs.size()):
        at = target + starts[i]
        for k in range(requests.size()):
            nbytes = requests[k].rows * signature.inputs[i].row_bytes
            memcpy(at, requests[k].body() + requests[k].layout.offsets[i], nbytes)
            at += nbytes


cdef struct Parts:
    # The outputs of a batch, as memory of arrays that the caller holds.
    ReplyPart parts[FAST_OUTPUTS]
    int count


cdef bint _add_part(Parts *parts, object tensor, int64_t rows, bint alone) except -1:
    """Take one output; False where it cannot be cut into rows where it lies."""
    cdef ReplyPart *part = &parts.parts[parts.count]
    cdef Py_ssize_t length = 0
    cdef object data = tensor.data
    cdef cnp.ndarray array
    cdef int64_t nbytes
    if parts.count == FAST_OUTPUTS or tensor.parameters or not cnp.PyArray_CheckExact(data):
        return False
    array = <cnp.ndarray>data
    if not cnp.PyArray_IS_C_CONTIGUOUS(array) or not cnp.PyArray_ISNOTSWAPPED(array):
        return False
    parts.count += 1
    part.data = <const unsigned char *>cnp.PyArray_DATA(array)
    part.shape = <const Py_ssize_t *>cnp.PyArray_DIMS(array)
    part.rank = cnp.PyArray_NDIM(array)
    if not alone and (part.rank == 0 or part.shape[0] != rows):
        return False
    nbytes = cnp.PyArray_NBYTES(array)
    part.row_bytes = nbytes // rows
    if part.row_bytes * rows != nbytes:
        return False
    part.name = PyUnicode_AsUTF8AndSize(tensor.name, &length)
    part.name_length = <size_t>length
    part.datatype = PyUnicode_AsUTF8AndSize(tensor.datatype, &length)
    part.datatype_length = <size_t>length
    part.type = datatype_of(part.datatype, part.datatype_length)
    return item_size_of(part.type) == <size_t>cnp.PyArray_ITEMSIZE(array)


cdef bint _fits(Parts *parts, vector[CRequest *] &requests) noexcept:
    """Whether the outputs can be written as each request asks for them."""
    cdef size_t i
    cdef int64_t row = 0
    for i in range(requests.size()):
        if not fits_fast_response(
            (<FastRequest *>requests[i])[0], parts.parts, parts.count, row
        ):
            return False
        row += requests[i].rows
    return True


def reply(Queue queue not None, list handles not None, list tensors not None,
          uint64_t assemble_ns, dict timings not None):
    """Answer a batch of fast-path requests, where their answers are small.

    The sent bytes are copied out of the outputs, so that nothing is shared with the handler.

    Args:
        queue: The queue that the requests came from.
        handles: The batch's requests, in row order.
        tensors: The outputs.
        assemble_ns: How long the batch took to be assembled.
        timings: Nanoseconds by stage of the whole batch, as the handler's runner gave them.

    Returns:
        For each handle whether it was answered now; False where it had expired. None, and no
        request is answered, where an answer is not of the common form or large.
    """
    cdef Parts parts
    cdef ReplyStage stages[STAGES]
    cdef int stage_count = 1
    cdef int64_t rows = 0
    cdef NativeHandle handle
    cdef Py_ssize_t length = 0
    cdef size_t i
    cdef vector[CRequest *] requests
    cdef vector[unsigned char] won
    cdef list result = [False] * len(handles)
    requests.reserve(len(handles))
    for handle in handles:
        requests.push_back(handle.native)
        rows += handle.native.rows
    if not tensors or len(timings) >= STAGES - 1:
        return None
    parts.count = 0
    for tensor in tensors:
        if not _add_part(&parts, tensor, rows, requests.size() == 1):
            return None
    if not _fits(&parts, requests):
        return None
    stages[0].name = b"assemble"
    stages[0].length = 8
    stages[0].nanoseconds = assemble_ns
    for name, nanoseconds in timings.items():
        stages[stage_count].name = PyUnicode_AsUTF8AndSize(name, &length)
        stages[stage_count].length = <size_t>length
        stages[stage_count].nanoseconds = nanoseconds
        stage_count += 1
    won.resize(requests.size())
    # Nothing behind this raises: who wins a request answers it.
    queue.queue.finish(requests.data(), requests.size(), won.data())
    rows = 0
    for i in range(requests.size()):
        if won[i]:
            send_fast_response(
                <FastRequest *>requests[i], parts.parts, parts.count, rows, requests.size() == 1,
                stages, stage_count
            )
            publish(requests[i])
            result[i] = True
        rows += requests[i].rows
        if won[i]:
            release_request(requests[i])
    return result
