# Needs the GIL: Python objects pass from one thread to another.
"""Fast-path requests in Python: the routes to models, and the requests' handles.

The native servers read fast-path requests (native/infer/fast_request.hpp) without Python, and push
them into the model's queue (`ksrv_push_fast`). The thread that takes them from the queue gets
ordinary handles (`FastHandle`), whose Python request is built on first use. Their batches are made
in request_batch.pyx. `ModelEndpoint` has all that these steps need of a model.
"""

import logging
from random import getrandbits

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from native.base.clock cimport NEVER
from native.infer.fast_request cimport FAST_INPUTS
from native.infer.model_signature cimport InputSignature
from native.infer.plain_request cimport PlainForm
from native.memory.buffer_pool cimport BufferPool
from native.queue.request cimport Request as CRequest, Taken, publish
from native.queue.request_queue cimport PUSH_INLINE, PUSH_OK, release, retain
from native.server.fast_path cimport fail_fast_request, undo_fast_request
from native.tensor.datatype cimport (
    DT_BYTES, DT_INVALID, MAX_RANK as RANK_LIMIT, datatype_of, item_size_of,
)
from native.tensor.padding cimport LengthBuckets as CLengthBuckets

from ksrv._native.memory.buffer_pool cimport ksrv_wrap
from ksrv._native.queue.request_handle cimport ksrv_bind_handle
from ksrv._native.server.exchange cimport Exchange, ksrv_exchange, ksrv_route
from ksrv._native.server.fast_images cimport FastImages
from ksrv._native.tensor.padding cimport LengthBuckets

if not cython.compiled:
    from collections.abc import Callable, Sequence
    from typing import Any

# An answer in plain JSON without rows has these fields beside the outputs, so an output with such a
# name needs Python.
RESERVED_FIELDS: frozenset[str] = frozenset(("id", "model_name", "model_version"))

log: logging.Logger = logging.getLogger(__name__)


@cython.final
cdef class FastHandle(NativeHandle):
    """The handle of a fast-path request."""

    cdef object _make_request(self):
        cdef FastRequest *native = <FastRequest *>self.native
        request = ksrv_request_of(native)
        # A timeout counts from the request's arrival, not from when its handle is made.
        cdef int64_t deadline_ns = native.client_deadline_ns
        request.deadline_ns = None if deadline_ns == NEVER else deadline_ns
        request.lengths = self._lengths()
        return request

    cdef object _lengths(self):
        cdef FastRequest *request = <FastRequest *>self.native
        cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
        return {} if endpoint.length is None else {endpoint.length: request.layout.row_length}

    cdef object _headers(self):
        cdef FastRequest *request = <FastRequest *>self.native
        if self._request is not None:
            return self._request.headers
        return (<ModelEndpoint>request.signature.endpoint).route.headers_of(_head_of(request))


cdef bytes _head_of(FastRequest *request):
    return PyBytes_FromStringAndSize(request.head(), <Py_ssize_t>request.head_length)


cdef object _body_of(FastRequest *request):
    BufferPool.retain(request.block)
    body = memoryview(ksrv_wrap(request.block))
    return body[request.body_offset:request.body_offset + request.body_length]


cdef object ksrv_request_of(FastRequest *request):
    cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
    if request.answers == NULL:  # it arrived over HTTP
        return _read(request)[0]
    # It arrived over gRPC: the body is the message.
    return endpoint.route.fast_message(
        (<object>request.reader).parse, endpoint.spec, _body_of(request), _head_of(request)
    )


cdef object _read(FastRequest *request):
    """Return the Python request of an HTTP request, and the function that writes its answer."""
    cdef ModelEndpoint endpoint = <ModelEndpoint>request.signature.endpoint
    cdef const PlainForm *plain = request.layout.plain
    return endpoint.route.fast_request(
        endpoint.spec,
        _body_of(request),
        str(request.json_length),
        _head_of(request),
        plain.number if plain != NULL else 0,
    )


# The callbacks `taken` and `answered` of fast-path requests; see native/queue/request.hpp.

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
        exchange = ksrv_exchange(endpoint, request.sender, request.turn)
        if isinstance(<object>answer, Exception):
            endpoint.route.refuse(exchange, <object>answer)
        else:
            endpoint.route.deliver(exchange, _read(request), <object>answer)
    except BaseException:
        if exchange is None:
            request.sender.fail(request.turn)
        else:
            exchange.fail()
        log.exception("an answer on the fast path failed")


cdef void ksrv_serve_fast_requests(CHttpServer *server, Connection *connection) noexcept:
    cdef ModelSignature *signature = connection.fast_request.signature
    cdef ModelEndpoint endpoint = <ModelEndpoint>signature.endpoint
    cdef FastRequest *fast[TOGETHER]
    cdef Push results[TOGETHER]
    cdef size_t room = 1, count, i
    if signature.max_rows:
        room = <size_t>min(signature.max_rows, <uint64_t>TOGETHER)
    count = server.routes.take_fast_requests(connection, fast, room)
    for i in range(count):  # before the push, because after it the timer may answer the request
        server.connections.disconnects.watch(fast[i].turn.connection, fast[i])
    ksrv_push_fast(fast, count, results)
    for i in range(count):
        if results[i] != PUSH_OK and results[i] != PUSH_INLINE:
            server.connections.disconnects.unwatch(fast[i].turn.connection)
            ksrv_route(endpoint, &server.answers, undo_fast_request(fast[i]), endpoint.route)


cdef void ksrv_push_fast(FastRequest **fast, size_t count, Push *results) noexcept:
    cdef ModelSignature *signature = fast[0].signature
    cdef ModelEndpoint endpoint = <ModelEndpoint>signature.endpoint
    cdef CRequest *requests[TOGETHER]
    cdef size_t slot = 0, inlined, i
    for i in range(count):
        requests[i] = fast[i]
    inlined = signature.queue.push_some(requests, count, signature.max_rows, results, &slot)
    for i in range(count):
        if results[i] == PUSH_OK:
            release(requests[i])  # the submitter's reference; the queue has another
    if inlined:
        _run_inline(endpoint, slot, requests, results, count)


cdef void _run_inline(
    ModelEndpoint endpoint, size_t slot, CRequest **requests, Push *results, size_t count
) noexcept:
    """Run the requests that claimed a slot. Each request ends, even after errors."""
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
        ours = False  # `InstanceRunner.run_inline` returns the slot, even after errors
        endpoint.runs[slot](handles)
    except BaseException:
        if ours:
            endpoint.signature.queue.return_slot(slot)
        for i in range(count):
            if results[i] == PUSH_INLINE:
                _fail(<FastRequest *>requests[i])
        log.exception("a batch on the fast path failed")
    for i in range(count):
        if results[i] == PUSH_INLINE:
            release(requests[i])  # the submitter's reference


cdef void _fail(FastRequest *request) noexcept:
    """Answer 500, unless the request has ended."""
    cdef unsigned char won = 0
    cdef CRequest *only = request
    request.signature.queue.finish(&only, 1, &won)
    if won:
        fail_fast_request(request)
        publish(request)
        release(request)  # the queue's reference; the thread that wins releases it


cdef class ModelEndpoint:
    """The native route to one version of a model: its signature, queue and prepared answers.

    Args:
        spec: The model's description. Every input has fixed dimensions after the first, except for
            the length of padded rows.
        timeout_ns: How long a request may take. 0 for no limit.
        route: The `ksrv.server.rest.fast_path.FastPath`, which builds Python requests and answers.
        runs: For each slot, the function to call with handles that run on it, after it was claimed.
        late: The answer after the deadline: header lines except for the length, and the sentences
            for a request that waited and for a request that was running, with %lld for the
            milliseconds.
        json_limit: The most bytes of JSON in a request.
        hides_token: Whether to hide the header with the token from handlers.
        nan_literals: Whether JSON answers write NaN as a literal. Such answers are left to Python.
        images: The `FastImages` of the inputs that also take JPEGs, by name.
        padding: If rows are padded along one length: its name, which lengths share batches, and by
            padded input the bytes of an element of padding and of the mask; see
            `ksrv.engine.batches.padding.RowPadding.of_one_length`. None if rows are not padded.
        sampled: The share of requests, from 0 to 1, that leave the fast path to be recorded or run
            on another version, and the least nanoseconds between two of them.

    Raises:
        ValueError: An input has another form.
    """

    def __cinit__(
        self,
        Queue queue not None,
        object spec not None,
        *,
        int64_t timeout_ns,
        object route: Any,
        runs: Sequence[Callable[[list[Any]], None]],
        tuple late: tuple[bytes, bytes, bytes],
        size_t json_limit,
        bint hides_token,
        unsigned depth,
        bint nan_literals,
        dict images: dict[str, FastImages | None] | None = None,
        tuple padding: tuple[str, LengthBuckets, dict[str, tuple[bytes, bytes]]] | None = None,
        tuple sampled: tuple[float, int] = (0.0, 0),
    ):
        if not 0 < len(spec.inputs) <= FAST_INPUTS or len(spec.outputs) > 255:
            raise ValueError(f"fast-path requests do not have {len(spec.inputs)} inputs")
        self.signature = new ModelSignature()
        self.signature.endpoint = <void *>self  # borrowed: servers keep the endpoint alive
        self.inputs = []
        self.images = []
        elements = {}
        if padding is not None:
            self.length, buckets, elements = padding
            self.signature.lengths.reset(
                new CLengthBuckets((<LengthBuckets?>buckets).native[0])
            )
        self.signature.queue = queue.queue
        retain(queue.queue)
        self.signature.taken = <Taken>_fast_request_taken
        self.signature.answered = _fast_request_answered
        self.signature.model = spec.name.encode()
        self.signature.version = spec.version.encode()
        self.signature.max_rows = spec.max_batch_size
        self.signature.timeout_ns = timeout_ns
        self.signature.json_limit = json_limit
        self.signature.hides_token = hides_token
        self.signature.limits.depth = min(depth, 512)
        self.signature.nan_literals = nan_literals
        self.signature.sampler.set(sampled[0], sampled[1], getrandbits(64))
        for tensor in spec.inputs:
            encoded = None if images is None else images.get(tensor.name)
            _declare_input(self, tensor, elements.get(tensor.name), encoded)
        self.signature.has_fields = len(spec.outputs) > 0
        for tensor in spec.outputs:
            self.signature.outputs.push_back(<bytes>tensor.name.encode())
            if not tensor.name.isprintable() or '"' in tensor.name or "\\" in tensor.name:
                raise ValueError(f"JSON escapes the name of the output {tensor.name!r}")
            self.signature.has_fields &= tensor.batched and tensor.name not in RESERVED_FIELDS
            cut = 0  # a bit for each dimension that is the length of padded rows
            for place, name in enumerate(tensor.lengths):
                cut |= (name is not None and name != "") << place
            self.signature.cut.push_back(cut)
        self.signature.late_fields, self.signature.late_waiting, self.signature.late_running = late
        self.queue = queue
        self.spec = spec
        self.route = route
        self.runs = list(runs)

    def __dealloc__(self):
        if self.signature != NULL:
            if self.signature.queue != NULL:
                release(self.signature.queue)
            self.signature.release()

    @property
    def unused(self) -> bool:
        """Whether neither the routes of an HTTP server nor a request refers to it."""
        return self.signature.refs.load() == 1


cdef int _declare_input(ModelEndpoint self, tensor, tuple elements, FastImages images) except -1:
    """Add an input to the signature, and its form to `ModelEndpoint.inputs`.

    Args:
        tensor: The input's `TensorSpec`.
        elements: If the input is padded, an element of padding, and an element of a generated mask.
    """
    cdef InputSignature declared
    cdef bytes kind = tensor.datatype.encode()
    cdef uint64_t row
    declared.name = tensor.name.encode()
    declared.datatype = datatype_of(kind, <size_t>len(kind))
    if (declared.datatype == DT_BYTES or declared.datatype == DT_INVALID
            or not tensor.batched):
        raise ValueError(f"the input {tensor.name} may need a look at its values")
    row = item_size_of(declared.datatype)
    if elements is not None:
        declared.made = bool(tensor.mask_of)
        padding, one = elements
        memcpy(declared.padding, <const unsigned char *>(<bytes>padding), len(padding))
        memcpy(declared.one, <const unsigned char *>(<bytes>one), len(one))
    for place, size in enumerate(tensor.shape[1:], 1):
        if (size == -1 and not declared.padded and elements is not None
                and tensor.lengths[place]):
            declared.padded = True
            declared.tail.push_back(-1)
            continue
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"the input {tensor.name} has a variable dimension")
        declared.tail.push_back(size)
        row *= <uint64_t>size
    declared.row_bytes = row
    if declared.tail.size() >= RANK_LIMIT:
        raise ValueError(f"the input {tensor.name} has more than {RANK_LIMIT} dimensions")
    if images is not None:
        declared.images = images.rules
    self.images.append(images)
    self.signature.inputs.push_back(declared)
    tail = tuple(tensor.shape[1:])
    # As `RowForm`, but without the elements of padding, which `declared` has, and with the length's
    # name for every input, not only for masks.
    form = (tensor.name, tensor.datatype, tail, b"", b"", self.length)
    # The shape of one row is made here, because most requests have one row.
    self.inputs.append(form if declared.padded else (*form, (1, *tail)))
    return 0
