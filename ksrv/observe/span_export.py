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

from ksrv._native.server.batch_spans import take_spans

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 0.1
"""Spans are sent at least this often, so that the log, which has room for 16 MiB, overflows only if sending is slow."""
STOP_S = 10.0
"""How long the last spans may take to be sent when the server ends."""

_EXPORTER_MODULE: Any = trace_exporter


class _EncodedSpans(list[Any]):
    """A message to the collector in place of its spans, for `OTLPSpanExporter.export`."""

    message = b""

    def SerializePartialToString(self) -> bytes:  # noqa: N802  the name that protobuf gives it
        """Return the message."""
        return self.message


def _encode(spans: Any) -> Any:
    return spans if isinstance(spans, _EncodedSpans) else encode_spans(spans)


class SpanExport:
    """The thread that exports the spans of this process's requests.

    Args:
        resource: The OpenTelemetry resource of the spans.
    """

    def __init__(self, resource: Resource) -> None:
        _EXPORTER_MODULE.encode_spans = _encode
        self._exporter = _EXPORTER_MODULE.OTLPSpanExporter()
        scope = InstrumentationScope("ksrv")
        context = SpanContext(1, 1, False)
        span = ReadableSpan("", context, resource=resource, instrumentation_scope=scope)
        (made,) = encode_spans([span]).resource_spans
        self._resource = _field(1, made.resource.SerializeToString())
        self._scope = _field(1, made.scope_spans[0].scope.SerializeToString())
        self._schema = _field(3, made.schema_url.encode())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ksrv-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_ms = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or 5000)
        while not self._stopped.wait(min(delay_ms / 1000, LONGEST_WAIT_S)):
            self._export()
        self._export()

    def _export(self) -> None:
        if spans := take_spans():
            message = _EncodedSpans()  # an `ExportTraceServiceRequest`
            message.message = _field(
                1, self._resource + _field(2, self._scope + spans) + self._schema
            )
            try:
                self._exporter.export(message)
            except Exception:
                log.exception("spans could not be exported")

    def stop(self) -> None:
        """Export the remaining spans."""
        self._stopped.set()
        self._thread.join(STOP_S)
        self._exporter.shutdown()


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    head, length = [number << 3 | 2], len(value)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + value
