"""The current span while a handler runs: the span of its batch, which native code records.

Spans that a handler starts become children of this span. Attributes and events that a handler sets on the span itself
are kept here, and added to the encoding of the span.
"""

from contextvars import Token
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from ksrv.errors import KsrvError

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class BatchSpan(NonRecordingSpan):
    """The span of a batch. Records only what a handler sets."""

    notes: Any = None
    """A span of the SDK with what the handler has set, or None. It is never ended, so it is not exported."""

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


for _name in (
    "set_attribute",
    "set_attributes",
    "add_event",
    "add_link",
    "update_name",
    "set_status",
):
    setattr(BatchSpan, _name, _noted(_name))
BatchSpan.record_exception = _noted("record_exception")


def enter(trace_id: bytes, span_id: bytes, state: bytes) -> tuple[BatchSpan, Token[Context]]:
    """Make a batch's span current, and return it and the token for `leave`."""
    kept = TraceState.from_header([state.decode()]) if state else None
    ids = int.from_bytes(trace_id), int.from_bytes(span_id)
    span = BatchSpan(SpanContext(*ids, False, _SAMPLED, kept))
    return span, context.attach(trace.set_span_in_context(span))


leave = context.detach


def valid_state(state: bytes) -> bytes:
    """Return a `tracestate` without invalid members."""
    return TraceState.from_header([state.decode("latin-1")]).to_header().encode()


def recorded(span: BatchSpan) -> bytes:
    """Return the fields of OTLP's `Span` that a handler has set."""
    notes: ReadableSpan | None = span.notes
    if notes is None:
        return b""
    (resource,) = encode_spans([notes]).resource_spans
    (made,) = resource.scope_spans[0].spans
    for field in ("trace_id", "span_id", "parent_span_id", "trace_state", "kind", "flags"):
        made.ClearField(field)
    for field in ("start_time_unix_nano", "end_time_unix_nano"):
        made.ClearField(field)
    encoded: bytes = made.SerializeToString()
    return encoded


def error_text(error: BaseException) -> str:
    """Return the description of a failure."""
    return error.message if isinstance(error, KsrvError) else type(error).__name__
