"""The contents of the messages between a worker and its handler process: one class for each form.

`pack_...` makes the `Packed` content of a message, `unpack_...` reads it. The content is MessagePack. msgspec checks it
against the classes below, so a message of the wrong form raises `ChannelError` when it is read.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from ksrv import errors
from ksrv._native.grpc.grpc_call import CODES
from ksrv.engine.available_memory import bytes_in_flight
from ksrv.engine.processes.link import ChannelError, Frame, Link, Packed, TooLarge
from ksrv.engine.processes.tensor_messages import TensorMessage, TensorWriter, read_tensors
from ksrv.errors import HandlerFailed, InferenceError, KsrvError
from ksrv.handlers.diagnostics.timing import stage_name
from ksrv.limits import Limits
from ksrv.observe.tracing import TRACEPARENT, current_traceparent
from ksrv.request import (
    Emitter,
    ExecutorInputs,
    ExecutorOutputs,
    InferRequest,
    Parameter,
    RequestedOutput,
    RequestPart,
    Tensor,
)

PROTOCOL = 10
"""The version of the messages. It rises with each change, because a process may run another ksrv than its worker."""
NO_BATCH = 0
"""The batch number of calls that belong to no batch, because a thread that the handler started makes them. The worker
accepts them if the handler has coroutines."""
CHUNK_BYTES_UNDER_WAY = 1 << 18
"""How many bytes of chunks a process sends for a batch before it waits for ROOM. The worker sends ROOM when the clients
have taken the chunks. One chunk may be larger."""
LEAST_CHUNK_BYTES = CHUNK_BYTES_UNDER_WAY // 32
"""Shorter chunks count as this many bytes, which bounds the number of chunks as well."""
MOST_CALLS = 1024
"""The most calls of one process without a result, or with a result that the process has not taken."""
EVENT_BYTES = 1 << 20
"""The most bytes of an event: a log record has up to 64 Ki characters of at most 12 bytes."""

_MOST_RETRY_AFTER_S = 2**31 - 1
_STAGE = re.compile("[A-Za-z0-9_]+")

Message = TypeVar("Message")


class MessageType(IntEnum):
    """The type of a message. Below 16: sent by the worker; from 16 on: by the process; from 32 on: events of the
    process.

    Events (log records, metrics) have a separate socket, so that they also arrive between batches, and never delay an
    answer. LEVEL is sent to the process on that socket. Each class below names the types whose content it is. LOADED
    contains a `ModelSpec`, and METRIC a `MetricRecord`. CLOSE (end the process) and GIVE_UP (end the requests of a
    batch whose clients do not read) have no content.
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
        limits: The server's limits, for images that the handler decodes itself.
        protocol: `PROTOCOL` of the server.
    """

    source: str
    instance: int
    threads: int
    level: int
    limits: Limits = Limits()
    protocol: int = 0


class LevelMessage(msgspec.Struct):
    """LEVEL: the lowest level of the log records that the process sends from now on."""

    level: int


class RunMessage(msgspec.Struct, omit_defaults=True):
    """RUN: a batch, as `ExecutorInputs`."""

    tensors: list[TensorMessage]
    rows: int
    requests: list[RequestPart]
    explain: bool = False
    streamed: bool = False
    traceparent: str = ""


class CancelCalls(msgspec.Struct):
    """CANCEL_CALL: the calls that the handler gives up."""

    call_ids: list[int]


class ChunkCredit(msgspec.Struct):
    """ROOM: how many bytes of a batch's chunks the worker has passed on to the clients."""

    nbytes: int


class EndSequences(msgspec.Struct):
    """END_SEQUENCES: the sequences whose state the handler drops."""

    sequence_ids: list[int]


class ErrorMessage(msgspec.Struct, omit_defaults=True):
    """FAILED, or a failure in an answer: a `KsrvError`, by the name of its class in ksrv.errors."""

    kind: str
    message: str
    status: int
    grpc_code: str
    headers: dict[str, str] = {}
    retry_after: int | None = None
    was_logged: bool = False


class AnswerMessage(msgspec.Struct, omit_defaults=True):
    """ANSWER, CHUNK, RESULT or CALL_CHUNK: `ExecutorOutputs`.

    Attributes:
        call: The number of the call, for RESULT and CALL_CHUNK.
        last: See `ExecutorOutputs`.
        parts: See `ExecutorOutputs`.
    """

    tensors: list[TensorMessage]
    call: int = 0
    failures: dict[int, ErrorMessage] = {}
    timings: dict[str, int] = {}
    headers: dict[int, dict[str, str]] = {}
    parameters: dict[int, dict[str, Parameter]] = {}
    only: list[int] | None = None
    last: bool = False
    facts: dict[int, dict[str, Any]] = {}
    parts: dict[int, tuple[int, int]] | None = None


class ListeningMessage(msgspec.Struct):
    """LISTENING: the indices of the requests that have not ended, as `Emitter.listening` returns them."""

    indices: list[int]


class CallMessage(msgspec.Struct, omit_defaults=True):
    """CALL: a handler's call to another model.

    Attributes:
        number: The number of the call, which its RESULT repeats.
        outputs: The names of the requested outputs; empty for all.
        traceparent: The current span of the calling code; "" without a span.
        deadline_ns: `time.monotonic_ns` at which the handler stops waiting, or None.
        streamed: Whether the handler takes intermediate answers, each as a CALL_CHUNK.
    """

    number: int
    model: str
    tensors: list[TensorMessage]
    version: str = ""
    outputs: list[str] = []
    parameters: dict[str, Parameter] = {}
    traceparent: str = ""
    deadline_ns: int | None = None
    streamed: bool = False
    id: str = ""


class LogMessage(msgspec.Struct):
    """LOG: a log record, with its traceback as text in `message`.

    Attributes:
        request_ids: The ids of the requests that the record is about.
    """

    name: str
    level: int
    message: str
    request_ids: list[str] = []


def _encoded(value: object) -> object:
    """Return a value that MessagePack supports, in place of a value that it does not."""
    if isinstance(value, slice):
        return value.start, value.stop
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a message has no form for {type(value)}")


def _decoded(kind: type, value: Any) -> object:
    """Return the value that `_encoded` replaced."""
    if kind is not slice:
        return value  # the field takes any object
    start, stop = value
    return slice(int(start), int(stop))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def chunk_bytes(outputs: ExecutorOutputs) -> int:
    """Return the bytes that a chunk counts as."""
    return max(LEAST_CHUNK_BYTES, sum(tensor.nbytes for tensor in outputs.tensors))


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Turn `TooLarge` in this block into the error that the handler gets.

    Args:
        what: The name of the message in the error.

    Raises:
        HandlerFailed: The message is too large for the worker.
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


def dump(note: Any, writer: TensorWriter | None = None) -> Packed:
    """Return the content of a message.

    Args:
        note: The object to encode.
        writer: The writer of the tensors in the note; it has their blocks.

    Raises:
        HandlerFailed: A text in the note has no UTF-8 form, or a number has more than 64 bits.
    """
    try:
        return Packed(_ENCODER.encode(note), () if writer is None else writer.blocks)
    except (UnicodeEncodeError, OverflowError) as error:
        raise HandlerFailed(f"a handler process cannot exchange a value: {error}") from error


def load(kind: type[Message], frame: Frame) -> Message:
    """Return the object that `dump` encoded.

    Raises:
        ChannelError: The message does not have the form of `kind`.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_decoded)
    try:
        note: Message = decoder.decode(frame.payload)
        return note
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"the other side sent no {kind.__name__}: {error}") from error


def _tensors(written: list[TensorMessage], frame: Frame) -> list[Tensor]:
    try:
        return read_tensors(written, frame)
    except (ValueError, TypeError) as error:
        raise ChannelError(f"the other side sent malformed tensors: {error}") from error


def pack_batch(batch: ExecutorInputs, link: Link) -> Packed:
    """Return the RUN message of a batch."""
    writer = TensorWriter(link)
    note = RunMessage(
        writer.write(list(batch.tensors.values())),
        batch.rows,
        list(batch.requests),
        batch.explain,
        streamed=batch.emit is not None,
        traceparent=current_traceparent(),
    )
    return dump(note, writer)


def unpack_batch(frame: Frame, emitter: Emitter) -> tuple[ExecutorInputs, str]:
    """Return the batch of a RUN message and the `traceparent` of its span, "" without one.

    The batch's arrays are views of the other side's blocks.

    Args:
        emitter: The emitter of intermediate answers, for a batch with a client that streams.

    Raises:
        ChannelError: The message is malformed.
    """
    note = load(RunMessage, frame)
    batch = ExecutorInputs(
        tensors={tensor.name: tensor for tensor in _tensors(note.tensors, frame)},
        rows=note.rows,
        requests=note.requests,
        explain=note.explain,
        emit=emitter if note.streamed else None,
    )
    return batch, note.traceparent


def pack_answer(outputs: ExecutorOutputs, link: Link, call: int = 0) -> Packed:
    """Return the content of an ANSWER, CHUNK, RESULT or CALL_CHUNK.

    Args:
        outputs: The handler's answer, or the called model's answer.
        call: For RESULT and CALL_CHUNK the number of the call.
    """
    writer = TensorWriter(link)
    note = AnswerMessage(
        tensors=writer.write(outputs.tensors),
        call=call,
        failures={index: to_message(error) for index, error in outputs.failures.items()},
        timings={stage_name(stage): ns for stage, ns in outputs.timings.items()},
        headers=outputs.headers,
        parameters=outputs.parameters,
        only=None if outputs.only is None else sorted(outputs.only),
        last=outputs.last,
        facts=outputs.facts,
        parts=outputs.parts,
    )
    return dump(note, writer)


def unpack_answer(frame: Frame, requests: int = 1) -> tuple[int, ExecutorOutputs]:
    """Return the content of an ANSWER, CHUNK, RESULT or CALL_CHUNK: the call's number, and the outputs or errors.

    The arrays are views of shared blocks.

    Args:
        requests: How many requests the batch has; a call is one request.

    Raises:
        ChannelError: The message is inconsistent.
    """
    note = load(AnswerMessage, frame)
    parts = note.parts or {}
    named = (*note.failures, *note.headers, *note.parameters, *note.facts, *parts)
    for index in (*named, *(note.only or ())):
        if not 0 <= index < requests:
            raise ChannelError(f"the answer speaks of request {index} of {requests}")
    for first, end in parts.values():
        if not 0 <= first <= end <= len(note.tensors):
            raise ChannelError(
                f"the answer speaks of tensors {first} to {end} of {len(note.tensors)}"
            )
    if not all(map(_STAGE.fullmatch, note.timings)):
        raise ChannelError("the name of a stage is not a word")
    # Exclusive: only these arrays refer to the memory, because `_tensors` has just made them.
    return note.call, ExecutorOutputs(
        tensors=_tensors(note.tensors, frame),
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


def pack_call(request: InferRequest, number: int, link: Link) -> Packed:
    """Return a CALL message."""
    writer = TensorWriter(link)
    note = CallMessage(
        number,
        request.model_name,
        writer.write(request.inputs),
        request.model_version,
        [output.name for output in request.outputs],
        dict(request.parameters),
        current_traceparent(),
        request.deadline_ns,
        request.stream is not None,
        request.id,
    )
    return dump(note, writer)


def unpack_call(frame: Frame) -> tuple[int, InferRequest, bool]:
    """Return the number and the request of a CALL message, and whether intermediate answers are wanted.

    Raises:
        ChannelError: The message is malformed.
    """
    note = load(CallMessage, frame)
    request = InferRequest(
        note.model,
        note.version,
        note.id,
        inputs=_tensors(note.tensors, frame),
        outputs=[RequestedOutput(name) for name in note.outputs],
        parameters=note.parameters,
        headers={TRACEPARENT: note.traceparent} if note.traceparent else {},
        deadline_ns=note.deadline_ns,
    )
    return note.number, request, note.streamed


def to_message(error: KsrvError) -> ErrorMessage:
    """Return an error's form for the socket. A class that the handler defines becomes its base class in ksrv.errors."""
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
        error.was_logged,
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
    error.grpc_code, error.was_logged = fault.grpc_code, fault.was_logged
    seconds = fault.retry_after
    error.retry_after = None if seconds is None else min(max(seconds, 0), _MOST_RETRY_AFTER_S)
    return error
