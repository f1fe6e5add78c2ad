"""The contents of messages: batches, answers, faults, descriptions, events, as records and checked JSON.

Names, parameters and headers are JSON, read into the classes below, so that an answer of the wrong
form is refused when it is read. Values that JSON cannot express (NaN, lone surrogates) pass through
the standard library's reader and writer, and the message is marked.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from ksrv import errors
from ksrv._native.grpc.grpc_call import CODES
from ksrv._native.process import tensor_descriptors
from ksrv._native.process.channel import ChannelError, Frame
from ksrv._native.process.shared_blocks import BlockError, ExportedBlocks, ImportedBlocks, TooLarge
from ksrv._native.process.tensor_descriptors import MOST_TENSORS
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.errors import HandlerFailed, InferenceError, KsrvError
from ksrv.handlers.diagnostics.timing import stage_name
from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.observe.tracing import TRACEPARENT, current_traceparent
from ksrv.request import (
    BatchInputs,
    BatchOutputs,
    BatchRequest,
    Emitter,
    InferRequest,
    Parameter,
    RequestedOutput,
    Tensor,
)
from ksrv.statistics import MetricRecord

PROTOCOL = 7
"""The version of the messages, raised with each change of them: a process may run another ksrv than its worker."""
NO_BATCH = 0
"""The number in the messages of calls that no batch makes: from threads of a handler that work for none. The worker
receives them if the handler has coroutines."""
CHUNKS_UNDER_WAY = 32
"""Chunks of a batch that are sent before the worker has said that its clients keep up."""
CHUNK_BYTES_UNDER_WAY = 1 << 18
"""Bytes of their tensors; one chunk may be larger."""
MOST_CALLS = 1024
"""Calls of one process that are under way, or whose results it has not taken."""
KEPT_BYTES = 1 << 29
"""The most bytes of blocks that a handler process may keep, besides the blocks of its largest messages."""
EVENT_BYTES = 1 << 20
"""The most bytes of an event. A log record has 64 Ki characters, which are 12 bytes each at most."""
KEPT_EVENT_BYTES = 32 * EVENT_BYTES
"""Of the blocks of long events, which are never given back: the process keeps at most 17 of them."""

_MOST_RETRY_AFTER_S = 2**31 - 1
_STAGE = re.compile("[A-Za-z0-9_]+")

Read: TypeAlias = tuple[str, tuple[int, ...], Any]
"""Datatype, shape and data of a tensor; its name is in the JSON beside the descriptors."""

Message = TypeVar("Message")


class MessageType(IntEnum):
    """The type of a message; the child's messages begin at 16, its event messages at 32.

    Events (log records, metrics) have a separate socket, so that they arrive while nothing
    runs and never delay an answer. LEVEL is sent to the process on that socket.
    """

    LOAD = 1
    RUN = 2
    CLOSE = 3
    LISTENING = 4
    RESULT = 5
    ROOM = 6
    END_SEQUENCES = 7
    LEVEL = 8
    CALL_CHUNK = 9
    LOADED = 16
    ANSWER = 17
    FAILED = 18
    CHUNK = 19
    CALL = 21
    CANCEL_CALL = 22
    GIVE_UP = 23
    LOG = 32
    METRIC = 33


class LoadMessage(msgspec.Struct):
    """The model that a process loads.

    Attributes:
        source: The `ModelSource` as JSON.
        level: The lowest level of log records that the process sends.
        limits: The server's, for what the handler itself decodes.
        protocol: `PROTOCOL` of the server.
    """

    source: str
    instance: int
    threads: int
    level: int
    limits: Limits = Limits()
    protocol: int = 0


class LevelMessage(msgspec.Struct):
    """The level from which log records come home from now on."""

    level: int


class RunMessage(msgspec.Struct, omit_defaults=True):
    """The part of `BatchInputs` that is not tensor bytes."""

    names: list[str]
    rows: int
    requests: list[BatchRequest]
    explain: bool = False
    tensor_parameters: dict[int, dict[str, Parameter]] = {}
    streamed: bool = False
    traceparent: str = ""


class CancelCalls(msgspec.Struct):
    """CANCEL_CALL: the calls that the handler gives up."""

    call_ids: list[int]


class ChunkCredit(msgspec.Struct):
    """ROOM: how many more chunks of a batch the process may send."""

    chunks: int


class EndSequences(msgspec.Struct):
    """END_SEQUENCES: the sequences whose state the handler drops."""

    sequence_ids: list[int]


class ErrorMessage(msgspec.Struct, omit_defaults=True):
    """A `KsrvError`, by the name of its class in ksrv.errors."""

    kind: str
    message: str
    status: int
    grpc_code: str
    headers: dict[str, str] = {}
    retry_after: int | None = None


class AnswerMessage(msgspec.Struct, omit_defaults=True):
    """The part of `BatchOutputs` that is not tensor bytes.

    Attributes:
        call: Of RESULT and CALL_CHUNK, the number of the call.
        last: See `BatchOutputs`.
        parts: See `BatchOutputs`.
    """

    names: list[str]
    call: int = 0
    failures: dict[int, ErrorMessage] = {}
    timings: dict[str, int] = {}
    headers: dict[int, dict[str, str]] = {}
    parameters: dict[int, dict[str, Parameter]] = {}
    tensor_parameters: dict[int, dict[str, Parameter]] = {}
    only: list[int] | None = None
    last: bool = False
    facts: dict[int, dict[str, Any]] = {}
    parts: dict[int, tuple[int, int]] | None = None


class ListeningMessage(msgspec.Struct):
    """The indices of the requests that have not ended, as `Emitter.listening` gives them."""

    indices: list[int]


class CallMessage(msgspec.Struct, omit_defaults=True):
    """A handler's call to another model, beside its tensors.

    Attributes:
        number: Tells the calls of a batch apart.
        names: Of the inputs.
        outputs: The outputs that are wanted; none for all.
        traceparent: The span that is current where the call is made; "" without one.
        deadline_ns: `time.monotonic_ns` at which the handler stops waiting, or None.
        streamed: Whether the handler takes intermediate answers, each as a CALL_CHUNK.
    """

    number: int
    model: str
    names: list[str]
    version: str = ""
    outputs: list[str] = []
    parameters: dict[str, Parameter] = {}
    traceparent: str = ""
    deadline_ns: int | None = None
    streamed: bool = False
    id: str = ""


class LogMessage(msgspec.Struct):
    """A log record, its traceback already text.

    Attributes:
        request_ids: The requests that it is about.
    """

    name: str
    level: int
    message: str
    request_ids: list[str] = []


def _encoded(value: object) -> object:
    """Return a value that JSON has no form for as one that it has."""
    if isinstance(value, slice):
        return value.start, value.stop
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a message has no form for {type(value)}")


def _decoded(kind: type, value: Any) -> object:
    """Return what `_encoded` was given."""
    if kind is not slice:
        return value  # of a field that holds any object
    start, stop = value
    return slice(int(start), int(stop))


_ENCODER = msgspec.json.Encoder(enc_hook=_encoded)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, dec_hook=_decoded)
    for kind in (
        LoadMessage,
        LevelMessage,
        RunMessage,
        ErrorMessage,
        AnswerMessage,
        ListeningMessage,
        CallMessage,
        CancelCalls,
        ChunkCredit,
        EndSequences,
        LogMessage,
        ModelSpec,
        MetricRecord,
    )
}


def chunk_bytes(outputs: BatchOutputs) -> int:
    """Return the bytes of a chunk's tensors."""
    return sum(tensor.nbytes for tensor in outputs.tensors)


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Tell a handler that what it has the process send is more than the worker takes.

    Raises:
        HandlerFailed: It is too large.
    """
    try:
        yield
    except TooLarge as error:
        raise HandlerFailed(
            f"{what} has {error}, the larger of --limits-body and --limits-in-flight"
        ) from None


def most_bytes(limits: Limits) -> int:
    """Return how many bytes the tensors of one message of a handler process may have."""
    return max(limits.body, bytes_in_flight(limits))


def most_kept(limits: Limits) -> int:
    """Return how many bytes the blocks of a handler process may have together.

    Two messages of the largest size, and blocks of earlier messages that are filled again.
    """
    return 2 * most_bytes(limits) + KEPT_BYTES


def _speakable(parameters: Iterable[Mapping[str, Parameter]]) -> bool:
    """Tell whether JSON proper can express these values."""
    for group in parameters:
        for value in group.values():
            if isinstance(value, float) and not math.isfinite(value):
                return False
    return True


class Packed(NamedTuple):
    """The content of a message.

    Attributes:
        lenient: Whether its JSON is the standard library's.
        blocks: The blocks of this side that the message names or lends; kept until it is sent.
    """

    payload: bytes = b""
    lenient: bool = False
    blocks: list[Any] | None = None


EMPTY = Packed()


def dump(note: Any, parameters: Iterable[Mapping[str, Parameter]] = ()) -> Packed:
    """Return a message that is a note alone.

    Args:
        parameters: The parameters in the note, with numbers of a client or handler.
    """
    if _speakable(parameters):
        try:
            return Packed(_ENCODER.encode(note))
        except UnicodeEncodeError:
            pass  # a lone surrogate, which the standard library writes as an escape
    text = json.dumps(msgspec.to_builtins(note, str_keys=True, enc_hook=_encoded))
    return Packed(text.encode("ascii"), lenient=True)


def load(kind: type[Message], frame: Frame) -> Message:
    """Return the note of a message that `dump` made.

    Raises:
        ChannelError: It is not JSON of that form.
    """
    return _load(kind, frame.payload, frame.lenient)


def _load(kind: type[Message], text: bytes, lenient: bool) -> Message:
    try:
        if lenient:
            return msgspec.convert(json.loads(text), kind, str_keys=True, dec_hook=_decoded)
        note: Message = _DECODERS[kind].decode(text)
        return note
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"the other side sent no {kind.__name__}: {error}") from error


def _written(
    tensors: Sequence[Tensor],
    exported: ExportedBlocks,
    note: msgspec.Struct,
    parameters: Iterable[Mapping[str, Parameter]],
) -> Packed:
    """Return a message of tensors, followed by a note; see `dump`."""
    if len(tensors) > MOST_TENSORS:
        raise HandlerFailed(
            f"{len(tensors)} tensors are too many for a handler process, which exchanges at most "
            f"{MOST_TENSORS} at a time"
        )
    written, blocks = tensor_descriptors.write(tensors, exported)
    text = dump(note, parameters)
    return Packed(written + text.payload, text.lenient, blocks)


def _split(frame: Frame, imported: ImportedBlocks) -> tuple[list[Read], bytes]:
    """Return the tensors of a message, and the JSON after them."""
    try:
        found, rest = tensor_descriptors.read(frame.payload, imported)
    except (ValueError, BlockError) as error:
        raise ChannelError(f"the other side sent tensors that do not add up: {error}") from error
    return found, frame.payload[rest:]


def _named(
    names: Sequence[str], found: Sequence[Read], parameters: Mapping[int, dict[str, Parameter]]
) -> list[Tensor]:
    if len(names) != len(found):
        raise ChannelError(f"the other side sent {len(found)} tensors and {len(names)} names")
    return [
        Tensor(name, kind, shape, data, parameters.get(index, {}))
        for index, (name, (kind, shape, data)) in enumerate(zip(names, found, strict=True))
    ]


def _names(tensors: Sequence[Tensor]) -> list[str]:
    """Return the names of tensors as plain strings, because a handler may use a subclass of str."""
    return [str.__str__(tensor.name) for tensor in tensors]


def _tensor_parameters(named: Sequence[Tensor]) -> dict[int, dict[str, Parameter]]:
    return {index: dict(each.parameters) for index, each in enumerate(named) if each.parameters}


def pack_batch(batch: BatchInputs, exported: ExportedBlocks) -> Packed:
    """Return the RUN message of a batch."""
    note = RunMessage(
        names=list(batch.tensors),
        rows=batch.rows,
        requests=list(batch.requests),
        explain=batch.explain,
        tensor_parameters=_tensor_parameters(list(batch.tensors.values())),
        streamed=batch.emit is not None,
        traceparent=current_traceparent(),
    )
    return _written(
        list(batch.tensors.values()),
        exported,
        note,
        [
            *(request.parameters for request in batch.requests),
            *(own for request in note.requests for own in request.input_parameters.values()),
            *(own for request in note.requests for own in request.output_parameters.values()),
            *note.tensor_parameters.values(),
        ],
    )


def unpack_batch(
    frame: Frame, imported: ImportedBlocks, emitter: Callable[[], Emitter]
) -> tuple[BatchInputs, str]:
    """Return the batch of a RUN message and the `traceparent` of its span, "" without one.

    The batch's arrays are views of the other side's blocks.

    Args:
        emitter: Makes the emitter of intermediate answers, for a batch with a client that streams.

    Raises:
        ChannelError: The message does not add up.
    """
    found, text = _split(frame, imported)
    note = _load(RunMessage, text, frame.lenient)
    named = _named(note.names, found, note.tensor_parameters)
    batch = BatchInputs(
        tensors={tensor.name: tensor for tensor in named},
        rows=note.rows,
        requests=note.requests,
        explain=note.explain,
        emit=emitter() if note.streamed else None,
    )
    return batch, note.traceparent


def pack_answer(outputs: BatchOutputs, exported: ExportedBlocks, call: int = 0) -> Packed:
    """Return an ANSWER, CHUNK or RESULT message.

    Args:
        outputs: The handler's answer, or that of the called model.
        call: Of RESULT, the number of the call.
    """
    note = AnswerMessage(
        names=_names(outputs.tensors),
        call=call,
        failures={index: to_message(error) for index, error in outputs.failures.items()},
        timings={stage_name(stage): ns for stage, ns in outputs.timings.items()},
        headers=outputs.headers,
        parameters=outputs.parameters,
        tensor_parameters=_tensor_parameters(outputs.tensors),
        only=None if outputs.only is None else sorted(outputs.only),
        last=outputs.last,
        facts=outputs.facts,
        parts=outputs.parts,
    )
    parameters = [*note.parameters.values(), *note.tensor_parameters.values()]
    return _written(outputs.tensors, exported, note, parameters)


def unpack_answer(frame: Frame, imported: ImportedBlocks, requests: int) -> BatchOutputs:
    """Return the answer of an ANSWER or CHUNK message; its arrays are views of shared blocks.

    Raises:
        ChannelError: The message does not add up.
    """
    return _answer(frame, imported, requests)[1]


def unpack_result(frame: Frame, imported: ImportedBlocks) -> tuple[int, BatchOutputs]:
    """Return the call's number in a RESULT or CALL_CHUNK message, and the call's outputs or its error.

    Raises:
        ChannelError: The message does not add up.
    """
    return _answer(frame, imported, 1)


def _answer(frame: Frame, imported: ImportedBlocks, requests: int) -> tuple[int, BatchOutputs]:
    found, text = _split(frame, imported)
    note = _load(AnswerMessage, text, frame.lenient)
    parts = note.parts or {}
    named = (*note.failures, *note.headers, *note.parameters, *note.facts, *parts)
    for index in (*named, *(note.only or ())):
        if not 0 <= index < requests:
            raise ChannelError(f"the answer speaks of request {index} of {requests}")
    for first, end in parts.values():
        if not 0 <= first <= end <= len(found):
            raise ChannelError(f"the answer speaks of tensors {first} to {end} of {len(found)}")
    if not all(map(_STAGE.fullmatch, note.timings)):
        raise ChannelError("the name of a stage is no word")
    return note.call, BatchOutputs(
        tensors=_named(note.names, found, note.tensor_parameters),
        failures={index: to_error(fault) for index, fault in note.failures.items()},
        timings=note.timings,
        headers=note.headers,
        parameters=note.parameters,
        exclusive=True,
        only=None if note.only is None else frozenset(note.only),
        last=note.last,
        facts=note.facts,
        parts=note.parts,
    )


def pack_call(request: InferRequest, number: int, exported: ExportedBlocks) -> Packed:
    """Return a CALL message."""
    note = CallMessage(
        number,
        request.model_name,
        _names(request.inputs),
        request.model_version,
        [output.name for output in request.outputs],
        dict(request.parameters),
        current_traceparent(),
        request.deadline_ns,
        request.stream is not None,
        request.id,
    )
    return _written(request.inputs, exported, note, [note.parameters])


def unpack_call(frame: Frame, imported: ImportedBlocks) -> tuple[int, InferRequest, bool]:
    """Return the number and the request of a CALL message, and whether intermediate answers are wanted.

    Raises:
        ChannelError: The message does not add up.
    """
    found, text = _split(frame, imported)
    note = _load(CallMessage, text, frame.lenient)
    request = InferRequest(
        note.model,
        note.version,
        note.id,
        inputs=_named(note.names, found, {}),
        outputs=[RequestedOutput(name) for name in note.outputs],
        parameters=note.parameters,
        headers={TRACEPARENT: note.traceparent} if note.traceparent else {},
        deadline_ns=note.deadline_ns,
    )
    return note.number, request, note.streamed


def to_message(error: KsrvError) -> ErrorMessage:
    """Return an error's form for the socket; a handler's own class becomes its base class of ksrv."""
    kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    headers = dict(error.headers) if isinstance(error, InferenceError) else {}
    seconds = error.retry_after
    return ErrorMessage(
        kind.__name__,
        error.message,
        int(error.http_status),
        error.grpc_code,
        headers,
        None if seconds is None else int(seconds),
    )


def to_error(fault: ErrorMessage) -> KsrvError:
    """Return the error that `to_message` was given.

    Raises:
        ChannelError: The status or the gRPC code is not an error's.
    """
    if not 400 <= fault.status <= 599:
        raise ChannelError(f"a failure has the status {fault.status}")
    if fault.grpc_code not in CODES[1:]:
        raise ChannelError(f"a failure has the gRPC code {fault.grpc_code!a}")
    error: KsrvError
    if fault.kind == InferenceError.__name__:
        error = InferenceError(fault.message, fault.status, fault.headers)
    else:
        kind = getattr(errors, fault.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, KsrvError)):
            kind = HandlerFailed
        error = kind(fault.message)
    error.http_status = fault.status
    error.grpc_code = fault.grpc_code
    seconds = fault.retry_after
    error.retry_after = None if seconds is None else min(max(seconds, 0), _MOST_RETRY_AFTER_S)
    return error
