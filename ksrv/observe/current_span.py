"""The current span while a handler runs: the span of its batch, which native code records.

Spans that a handler starts become children of this span. Attributes and events that a handler sets on the span itself
are kept here, and added to the encoding of the span. This module also encodes the rare parts of spans for native code.
"""

from collections.abc import Mapping
from contextvars import Token
from functools import cached_property
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from ksrv.errors import KsrvError

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class BatchSpan(NonRecordingSpan):
    """The span of a batch. Records only what a handler sets."""

    notes: Any = None
    """A span of the SDK with what the handler has set, or None. It is never ended, so it is not exported."""

    def __init__(self, trace_id: bytes, span_id: bytes, state: bytes) -> None:
        self._ids = trace_id, span_id, state

    @cached_property
    def _context(self) -> SpanContext:  # type: ignore[override]  # most handlers do not need it
        trace_id, span_id, state = self._ids
        kept = TraceState.from_header([state.decode()])
        return SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), False, _SAMPLED, kept)

    def is_recording(self) -> bool:
        """See `Span.is_recording`."""
        return True


def _noted(name: str) -> Any:
    """Return the method of a `BatchSpan` that calls the method `name` of its notes."""

    def note(span: BatchSpan, *args: Any, **options: Any) -> None:
        if span.notes is None:
            parent = trace.set_span_in_context(span, Context())
            span.notes = trace.get_tracer("ksrv").start_span("ksrv.batch", context=parent)
        getattr(span.notes, name)(*args, **options)

    return note


_NOTED = "set_attribute set_attributes add_event add_link update_name set_status record_exception"
for _name in _NOTED.split():
    setattr(BatchSpan, _name, _noted(_name))


def enter(trace_id: bytes, span_id: bytes, state: bytes) -> tuple[BatchSpan, Token[Context]]:
    """Make a batch's span current, and return it and the token for `leave`."""
    span = BatchSpan(trace_id, span_id, state)
    return span, context.attach(trace.set_span_in_context(span))


leave = context.detach


def head_of(headers: Mapping[str, str]) -> bytes:
    """Return the lines of a request's head that tracing reads."""
    names = ("traceparent", "tracestate", "x-request-id")
    lines = [f"{name}: {headers[name]}\r\n" for name in names if name in headers]
    return "".join(lines).encode("utf-8", "replace")


def valid_state(state: bytes) -> bytes:
    """Return a `tracestate` without invalid members."""
    return TraceState.from_header([state.decode("latin-1")]).to_header().encode()


def _encoded(*, attributes: Mapping[str, str], **fields: Any) -> bytes:
    """Return fields of OTLP's `Span`."""
    pairs = [
        KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()
    ]
    encoded: bytes = Span(attributes=pairs, **fields).SerializeToString()
    return encoded


def fields_of(model: str, version: str) -> tuple[bytes, bytes]:
    """Return name, kind and attributes of the spans of each request, and of each batch."""
    named = {"ksrv.model.name": model, "ksrv.model.version": version}
    return (
        _encoded(name=f"infer {model}", kind=Span.SPAN_KIND_SERVER, attributes=named),
        _encoded(name="ksrv.batch", kind=Span.SPAN_KIND_INTERNAL, attributes=named),
    )


def failure(error: BaseException | str) -> bytes:
    """Return the fields of a failed span."""
    text = error if isinstance(error, str) else type(error).__name__
    kinds = {} if isinstance(error, str) else {"error.type": text}
    if isinstance(error, KsrvError):
        text = error.message.encode("utf-8", "replace").decode()
    status = Status(code=Status.STATUS_CODE_ERROR, message=text)
    return _encoded(status=status, attributes=kinds)


def recorded(span: BatchSpan, error: BaseException | None) -> bytes:
    """Return the fields that a handler has set on its batch's span, and the batch's failure.

    The result may have other fields. Native code writes them again after these, and readers take the last value.
    """
    failed = b"" if error is None else failure(error)
    if span.notes is None:
        return failed
    (resource,) = encode_spans([span.notes]).resource_spans
    encoded: bytes = resource.scope_spans[0].spans[0].SerializeToString()
    return encoded + failed
