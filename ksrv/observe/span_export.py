"""Sends the spans of requests, which native code records and encodes, to the collector of the OTLP exporter.

The exporter encodes spans one at a time in Python, which takes longer than most requests. So it gets whole messages
here, and does the rest: address, headers, compression, TLS, and sending again.
"""

import logging
import os
import threading
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from ksrv._native.server.batch_spans import close_span_log, open_span_log, take_spans

log = logging.getLogger(__name__)

STOP_S = 10.0
"""How long the last spans may take to be sent when the server ends."""


class _EncodedSpans(list[None]):
    """A message to the collector in place of its spans, for `OTLPSpanExporter.export`."""

    def __init__(self, message: bytes) -> None:
        super().__init__()
        self._message = message

    def SerializePartialToString(self) -> bytes:  # noqa: N802  the name that protobuf gives it
        """Return the message."""
        return self._message


def _encode(spans: Any) -> Any:
    return spans if isinstance(spans, _EncodedSpans) else encode_spans(spans)


class SpanExport:
    """The thread that exports the spans of this process's requests.

    Args:
        resource: The OpenTelemetry resource of the spans.
        follows_parent: See `open_span_log`.
        share: See `open_span_log`.
    """

    def __init__(self, resource: Resource, follows_parent: bool, share: float) -> None:
        trace_exporter.encode_spans = _encode
        self._exporter = trace_exporter.OTLPSpanExporter()
        context = SpanContext(1, 1, False)
        scope = InstrumentationScope("ksrv")
        span = ReadableSpan("", context, resource=resource, instrumentation_scope=scope)
        (made,) = encode_spans([span]).resource_spans
        self._resource = _field(1, made.resource.SerializeToString())
        self._scope = _field(1, made.scope_spans[0].scope.SerializeToString())
        self._schema = _field(3, made.schema_url.encode())
        self._wait_ns = round(float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or 5000) * 1e6)
        open_span_log(follows_parent, share)
        self._thread = threading.Thread(target=self._run, name="ksrv-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (spans := take_spans(self._wait_ns)) is not None:
            if spans:
                try:
                    self._exporter.export(_EncodedSpans(self._message(spans)))
                except Exception:
                    log.exception("spans could not be exported")

    def _message(self, spans: bytes) -> bytes:
        """Return an `ExportTraceServiceRequest`."""
        return _field(1, self._resource + _field(2, self._scope + spans) + self._schema)

    def stop(self) -> None:
        """Export the remaining spans."""
        close_span_log()
        self._thread.join(STOP_S)
        self._exporter.shutdown()


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    head, length = [number << 3 | 2], len(value)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + value
