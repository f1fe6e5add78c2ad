"""The classes of requests, batches and answers that front ends, engine and handlers pass to each other.

A front end reads an `InferRequest` from bytes. The engine joins requests to a batch, `ExecutorInputs`, for an executor,
which returns `ExecutorOutputs`. The engine splits these into an `InferResponse` for each request. A handler sees the
requests of its batch as `RequestPart`s. None of these classes knows sockets or queues.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ksrv._native.batch.batch import ExecutorInputs as ExecutorInputs
from ksrv._native.batch.batch import ExecutorOutputs as ExecutorOutputs
from ksrv._native.images.image_header import Header
from ksrv._native.server.response_stream import ChunkWriter, ResponseStream
from ksrv._native.tensor.tensor import Tensor as Tensor

Parameter: TypeAlias = bool | int | float | str
INTEGERS = range(-(2**63), 2**64)
"""The integers that a parameter can be: the range of gRPC's `int64_param` and `uint64_param`."""
Parameters: TypeAlias = Mapping[str, Parameter]
Array: TypeAlias = npt.NDArray[Any]
Slice: TypeAlias = slice
Element: TypeAlias = bytes | memoryview
"""An element of a BYTES tensor. Large elements, such as images, are views of the received block."""
MEDIA_TYPE = "media_type"
"""The parameter of an output whose elements are files: their content type, such as "audio/wav"."""
WARM_UP = "warm-up"
"""The id of the requests with which a model is warmed up."""

LONGEST_SEQUENCE_ID = 128
"""The most bytes of a text that names a sequence, by KServe's sequence extension."""
LARGEST_SEQUENCE_ID = 2**64 - 1

_PROXY_HEADER = re.compile(
    r"forwarded|via|cdn-loop|x-forwarded\b.*|x-original-.*|x-real-ip|x-remote-.*|true-client-ip|x-proxy.*"
    r"|(x-|x-cluster-|x-azure-|fastly-|fly-|proxy-|wl-proxy-)client-?ip"
    r"|(x-envoy|cf|x-amz-cf|x-amzn|x-azure|x-appengine|x-arr|l5d|x-varnish|x-traefik)\b.*",
    re.IGNORECASE,
)
"""Headers that proxies, load balancers and meshes add. A request with such a header may come from any machine."""


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


class ImagePlacement(msgspec.Struct, array_like=True, frozen=True):
    """The place of an encoded image in its row: `batch.images[row]`.

    A point of the image is in the row at `x * scale_x + left` and `y * scale_y + top`.

    Attributes:
        width: The width of the image as it was sent, in pixels, after `exif: apply` turned it.
        height: The height of the image as it was sent, in pixels, after `exif: apply` turned it.
        scale_x: The pixels of the row for each pixel of the image, in width.
        scale_y: The pixels of the row for each pixel of the image, in height. It differs from `scale_x` only if the
            resize changes the proportions.
        left: The position of the image's left edge in the row, in pixels; below 0 if a crop cuts it off.
        top: The position of the image's upper edge in the row, in pixels; below 0 if a crop cuts it off.
        row_width: The width of the row, in pixels.
        row_height: The height of the row, in pixels.
    """

    width: int
    height: int
    scale_x: float = 1.0
    scale_y: float = 1.0
    left: float = 0.0
    top: float = 0.0
    row_width: int = 0
    row_height: int = 0

    @property
    def scale(self) -> float:
        """`scale_x`."""
        return self.scale_x

    def to_image(self, boxes: Array) -> Array:
        """Return boxes in pixels of the row as boxes in pixels of the image, cut to the image.

        Args:
            boxes: Floats [n, 4]: x1, y1, x2, y2.
        """
        offset = np.array([self.left, self.top] * 2, boxes.dtype)
        scale = np.array([self.scale_x, self.scale_y] * 2, boxes.dtype)
        most = np.array([self.width, self.height] * 2, boxes.dtype)
        found: Array = ((boxes - offset) / scale).clip(0, most)
        return found


class CheckedImages(NamedTuple):
    """The encoded images of one input, after their headers were checked.

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
        binary: True for raw bytes, False for JSON, None for the default of the request.
        classification: How many of the most likely classes to answer with; 0 for the tensor.
        shared_memory: The part of a shared memory region to write the output to; None to send it in the answer.
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
        accept: The `Accept` header by which the client may get the only element of the only output as the whole answer
            (`file_type` in `ksrv/protocol/accept.py`); None if the answer has another form in any case.
        prefers_file: Whether a client that accepts files and JSON alike gets the file.
        headers: HTTP headers or gRPC metadata, names in lower case.
        deadline_ns: `time.monotonic_ns` at which the client stops waiting, or None.
        explain: Whether the explain route was called.
        mark_final: Whether the client wants a last answer without outputs at the end of a stream.
        nbytes: The bytes that were received for the request; they count in the memory budget.
        dialect: The dialect of the route; "" for KServe v2. Requests of different dialects are not joined.
        facts: Values that the dialect's routes pass to its handlers in addition to the headers, as JSON. No
            other code reads them.
        stream: Takes intermediate answers; None if the client wants only one answer. Requests with and without a
            stream are not joined.
        callers: If a handler made this request: the models whose handlers wait for it, beginning with the model that
            a client called.
        images: The checked images of the inputs, by the names of the inputs; None without images. Set by the
            validation.
        lengths: The lengths of the rows, by name (`ksrv/model/input_rules.py`); empty if the model has none. Set
            by the validation.
        client: The key of the client to which limits apply (`Access.client_of`); "" without limits.
        target: The model version that `Engine.find` returned; None if the engine is to find it.
        sequence: The request's part in a sequence. Set by the validation of a model that serves sequences.
        calls_nobody: Whether the handler may call no other model for the request, such as in a warm-up with zeros.
        has_called: Whether the handler has tried to call a model although `calls_nobody` forbids it.
        remember: Gets the answer first, before code that might change it: the response cache's function.
        sampled: Whether the native server has chosen the request for recording.
        on_chunk: Gets each intermediate answer before the client does, to record it.
        adapt: Called with the request and the description of its model before the request is checked. An ensemble uses
            it to fit its tensors to the model. It is called again if the model is reloaded meanwhile.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    parameters: Parameters = field(default_factory=dict)
    binary_output: bool = False
    accept: str | None = None
    prefers_file: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline_ns: int | None = None
    priority: int = 0
    explain: bool = False
    mark_final: bool = False
    nbytes: int = 0
    dialect: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    stream: ResponseStream | None = None
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


@dataclass(slots=True)
class InferResponse:
    """The answer to one request.

    Attributes:
        outputs: The outputs, in the order of the answer.
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
    """A submitted request. Its classes are for a queued, split or cached request, or a call from a handler."""

    def wait(self) -> InferResponse:
        """Sleep until the request has ended.

        Raises:
            KsrvError: The request failed.
        """

    def cancel(self) -> bool:
        """Cancel the request: it leaves the queue, or is detached from the running batch.

        Returns:
            Whether this call ended the request; False if it had ended before.
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
        output_parameters: The parameters of the outputs that the client asked for, by the names of the outputs.
        dialect: The dialect of the route; "" for KServe v2.
        facts: Values that the dialect's routes pass to its handlers in addition to the headers.
        sequence: The request's part in a sequence; None if the model serves none.
        outputs: The names of the outputs that the client asked for; empty means all.
        deadline_ns: `time.monotonic_ns` at which the client stops waiting, or None.
        lengths: The lengths of the rows without the padding, by the names of the lengths.
        images: For each input that was sent as encoded images, the place of each image in its row.
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
    images: Mapping[str, list[ImagePlacement]] = {}

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
            part.outputs = tuple(asked.name for asked in request.outputs)
        inputs = {tensor.name: tensor.parameters for tensor in request.inputs if tensor.parameters}
        if inputs:
            part.input_parameters = inputs
        outputs = {asked.name: asked.parameters for asked in request.outputs if asked.parameters}
        if outputs:
            part.output_parameters = outputs
        return part


class Emitter(Protocol):
    """Takes the intermediate answers of a running batch, for the clients or, in a handler process, for the worker.

    Attributes:
        writer: Writes chunks of texts faster than a call; None if only calls are possible.
    """

    writer: ChunkWriter | None

    def __call__(self, outputs: ExecutorOutputs) -> None:
        """Pass an intermediate answer to each request that still wants it, and wait for slow clients.

        Args:
            outputs: The answer, with every row of the batch. Or outputs without tensors, which end the requests in
                `only`; requests in `failures` end with their errors.
        """

    def listening(self) -> frozenset[int]:
        """Return the indices of the requests that have not ended by a disconnect or a deadline."""


def single_request(tensors: Sequence[Tensor], rows: int, request: InferRequest) -> ExecutorInputs:
    """Return a batch of one request."""
    part = RequestPart.of(request, slice(0, rows))
    return ExecutorInputs(
        {tensor.name: tensor for tensor in tensors}, rows, [part], request.explain
    )
