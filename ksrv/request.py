"""The nouns that travel between the front ends, the engine and the handlers.

A front end turns bytes into an `InferRequest`; the engine joins requests into `ExecutorInputs` for an
executor, which answers with `ExecutorOutputs`; the engine splits those into one `InferResponse` for
each request. None of these classes knows a socket, a queue or a model.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy.typing as npt

from ksrv._native.batch.batch import ExecutorInputs as ExecutorInputs
from ksrv._native.batch.batch import ExecutorOutputs as ExecutorOutputs
from ksrv._native.images.image_header import Header
from ksrv._native.tensor.tensor import Tensor as Tensor

Parameter: TypeAlias = bool | int | float | str
INTEGERS = range(-(2**63), 2**64)
"""The integers that a parameter can be, as in `int64_param` and `uint64_param` of gRPC."""
Parameters: TypeAlias = Mapping[str, Parameter]
Array: TypeAlias = npt.NDArray[Any]
Slice: TypeAlias = slice
Element: TypeAlias = bytes | memoryview
"""One BYTES element; large elements (images) are views into the received block."""
WARM_UP = "warm-up"
"""The id of requests that a model is warmed up with."""

LONGEST_SEQUENCE_ID = 128
"""The bytes of a text that names a sequence; the bound of KServe's sequence extension."""
LARGEST_SEQUENCE_ID = 2**64 - 1

_PROXY_HEADER = re.compile(
    r"forwarded|via|cdn-loop|x-forwarded\b.*|x-original-.*|x-real-ip|x-remote-.*|true-client-ip|x-proxy.*"
    r"|(x-|x-cluster-|x-azure-|fastly-|fly-|proxy-|wl-proxy-)client-?ip"
    r"|(x-envoy|cf|x-amz-cf|x-amzn|x-azure|x-appengine|x-arr|l5d|x-varnish|x-traefik)\b.*",
    re.IGNORECASE,
)
"""The headers by which proxies, load balancers and meshes show themselves: their callers may be on any machine."""


def is_forwarded(names: Iterable[str]) -> bool:
    """Tell whether a request came through a proxy.

    Args:
        names: The names of its headers or metadata.
    """
    return any(map(_PROXY_HEADER.fullmatch, names))


@dataclass(frozen=True, slots=True)
class SharedMemoryRef:
    """A part of a registered region of shared memory, as a request names it."""

    region: str
    offset: int
    byte_size: int


class CheckedImages(NamedTuple):
    """The encoded images of one input, their headers read and checked.

    Attributes:
        shape: Rows, height, width and channels of the tensor that they become.
        headers: The header of each image.
        decode_ns: About how many nanoseconds one thread takes to decode them.
    """

    shape: tuple[int, ...]
    headers: Sequence[Header]
    decode_ns: int


@dataclass(slots=True)
class RequestedOutput:
    """One entry of a request's `outputs`.

    Attributes:
        binary: True for raw bytes, False for JSON, None for the request's default.
        classification: How many classes to answer with, or 0.
        shared_memory: The part of a shared memory region for the output, or None for the answer itself.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    parameters: Parameters = field(default_factory=dict)
    shared_memory: SharedMemoryRef | None = None


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """A request's part in its sequence.

    Attributes:
        number: Unlike `id`, unique among all sequences of the model.
        id: The client's id.
        start: Whether the request starts the sequence.
        end: Whether the request ends the sequence.
    """

    number: int
    id: int | str
    start: bool
    end: bool


@dataclass(slots=True)
class InferRequest:
    """One inference request, parsed but not yet checked against its model.

    Attributes:
        outputs: The outputs that the client asked for, in its order; empty means all.
        binary_output: Whether outputs with `binary` None are answered as raw bytes.
        file_type: The media type by which the client asks for the only element of the only output as the whole answer,
            such as "audio/wav"; "" if it does not.
        headers: HTTP headers or gRPC metadata, names in lower case.
        deadline_ns: `time.monotonic_ns` at which the client stops waiting, or None.
        explain: Whether the explain route was called.
        mark_final: Whether a stream that ends after its last chunk ends with an answer without outputs.
        nbytes: Bytes received for it, which count in the bytes in flight.
        dialect: The dialect by which the request came; "" for KServe v2. A batch holds requests of one
            dialect only.
        facts: Values that the dialect's routes pass to its handlers besides the headers, as JSON; no
            other code reads it.
        stream: Takes intermediate answers; None if they are not wanted. Requests with and without a
            stream are not joined.
        callers: The models whose handlers wait for this request, beginning with the model that a client called.
        images: The checked images of its inputs by name, once it is validated; None without any.
        lengths: The lengths of its rows by the names that the model gives them, once it is validated; empty
            if the model has none.
        client: Identifies a client with limits; "" for a client without.
        target: The model version that `Engine.find` returned for it; None leaves that to the engine.
        sequence: Its part in a sequence, once a model that serves sequences has accepted it.
        calls_nobody: Whether the handler may call no other model for it, as for zeros of the warm-up.
        has_called: Whether the handler has tried to.
        remember: Takes its answer before anybody else has it, who might change it; the response cache's.
        sampled: Whether the native server has chosen it to be recorded.
        on_chunk: Takes each intermediate answer before the client has it, to record it.
        adapt: Called with the request and the description of its model before the request is checked. An ensemble fits
            its tensors to the model so. It may be called twice, if the model is reloaded meanwhile.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    parameters: Parameters = field(default_factory=dict)
    binary_output: bool = False
    file_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline_ns: int | None = None
    priority: int = 0
    explain: bool = False
    mark_final: bool = False
    nbytes: int = 0
    dialect: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    stream: "AnswerSink | None" = None
    callers: tuple[str, ...] = ()
    images: dict[str, CheckedImages] | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)
    client: str = ""
    target: Any = None
    sequence: SequenceRequest | None = None
    calls_nobody: bool = False
    has_called: bool = False
    remember: "Callable[[InferResponse], object] | None" = None
    sampled: bool = False
    on_chunk: "Callable[[InferResponse], object] | None" = None
    adapt: "Callable[[InferRequest, Any], object] | None" = None


class AnswerSink(Protocol):
    """Takes the intermediate answers of one request: an `engine.requests.response_stream.ResponseStream`.

    A Protocol, because a request is below the engine, whose stream holds answers of this module.
    """

    def put(self, response: "InferResponse") -> bool:
        """Append an answer; this never waits. Return whether the memory budget has room for it."""

    def has_room(self) -> bool:
        """Tell whether another answer may come."""

    def is_far_behind(self) -> bool:
        """Tell whether so much waits for the client that no handler may send it more."""

    def taken_since(self, time_ns: int) -> bool:
        """Tell whether the client has taken an answer since a time of `time.monotonic_ns`."""

    def wait_room(self, until_ns: int) -> bool:
        """Sleep until there is room; return False at `until_ns`, on the clock of `time.monotonic_ns`."""

    def call_with_room(self, callback: Callable[[], object]) -> None:
        """Have a function called once there is room; at once if there is."""


@dataclass(slots=True)
class InferResponse:
    """The answer to one request.

    Attributes:
        outputs: The outputs in the order they are answered.
        timings: Nanoseconds by stage name (queue, assemble, preprocess, inference, postprocess).
        headers: Response headers that the handler set for this request.
        facts: Values that the handler's dialect passes to the routes of the request's dialect, as JSON.
    """

    model_name: str
    model_version: str
    id: str
    outputs: list[Tensor]
    parameters: Parameters = field(default_factory=dict)
    timings: Mapping[str, int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class RequestHandle(Protocol):
    """A request that was submitted: queued, split, cached, or a call of a handler or its process."""

    def wait(self) -> InferResponse:
        """Sleep until the request has ended.

        Raises:
            KsrvError: The request failed.
        """

    def cancel(self) -> bool:
        """Give the request up: it frees its place, or is detached from the batch that runs.

        Returns:
            Whether this ended it; False when it had ended before.
        """

    def done(self) -> bool:
        """Tell whether the request has ended."""

    def add_done_callback(self, callback: Callable[["RequestHandle"], object]) -> None:
        """Have `callback` called once the request has ended, on the thread that ended it."""


class RequestPart(msgspec.Struct, array_like=True):
    """One request's part of a batch, as a handler sees it: `batch.requests[i]`.

    Attributes:
        slice: The request's part of the batch's rows: `array[request.slice]`.
        input_parameters: The parameters of its inputs, by the names of the inputs with parameters.
        output_parameters: The same of the outputs that it asked for.
        dialect: The dialect by which it came; "" for KServe v2.
        facts: Values that the dialect's routes pass to its handlers besides the headers.
        sequence: Its part in a sequence; None if the model serves none.
        outputs: The names of the outputs that the client asked for; empty means all.
        deadline_ns: `time.monotonic_ns` at which the client stops waiting, or None.
        lengths: The lengths of its rows without the padding, by the names that the model gives them.
    """

    slice: Slice
    id: str = ""
    parameters: Parameters = {}
    headers: Mapping[str, str] = {}
    input_parameters: Mapping[str, Parameters] = {}
    output_parameters: Mapping[str, Parameters] = {}
    dialect: str = ""
    facts: Mapping[str, Any] = {}
    sequence: SequenceRequest | None = None
    outputs: tuple[str, ...] = ()
    deadline_ns: int | None = None
    lengths: Mapping[str, int] = {}

    @property
    def rows(self) -> int:
        """How many rows of the batch are the request's."""
        stop: int = self.slice.stop
        return stop - int(self.slice.start)

    @classmethod
    def of(cls, request: InferRequest, rows: Slice) -> "RequestPart":
        """Return what a handler sees of a request."""
        part = cls(rows, request.id, request.parameters, request.headers)
        part.dialect = request.dialect
        part.facts = request.facts
        part.sequence = request.sequence
        part.deadline_ns = request.deadline_ns
        part.lengths = request.lengths
        if request.outputs:
            part.outputs = tuple(one.name for one in request.outputs)
        inputs = {one.name: one.parameters for one in request.inputs if one.parameters}
        if inputs:
            part.input_parameters = inputs
        outputs = {one.name: one.parameters for one in request.outputs if one.parameters}
        if outputs:
            part.output_parameters = outputs
        return part


class Emitter(Protocol):
    """Takes the intermediate answers of a running batch, for the clients or to send them out of a handler process."""

    def __call__(self, outputs: ExecutorOutputs) -> None:
        """Hand one intermediate answer to each request that still wants it; wait for slow clients.

        Args:
            outputs: The answer, with every row of the batch; or without tensors, to end the requests in
                `only`, those in `failures` with their errors.
        """

    def listening(self) -> frozenset[int]:
        """Return the indices of the requests that have not ended: no disconnect, no deadline."""


def single_request(tensors: Sequence[Tensor], rows: int, request: InferRequest) -> ExecutorInputs:
    """Return the batch that holds one request alone."""
    part = RequestPart.of(request, slice(0, rows))
    return ExecutorInputs(
        {tensor.name: tensor for tensor in tensors}, rows, [part], request.explain
    )
