"""Sends the spans of requests, which native code records and encodes, to the collector of the OTLP exporter.

The exporter encodes spans one at a time in Python, which takes longer than most requests. So it gets whole messages
here, and does the rest: address, headers, compression, TLS, and sending again.
"""

import logging
import threading
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

from ksrv._native.server.batch_spans import take_spans
from ksrv.protocol.protobuf import length_prefix

log = logging.getLogger(__name__)

EXPORT_INTERVAL_S = 0.1
"""Short, so that the native buffer of spans (16 MiB) overflows only if sending is slow."""
STOP_S = 10.0
"""How long the last spans may take to be sent when the server ends."""

_EXPORTER_MODULE: Any = trace_exporter


class _EncodedSpans(list[Any]):
    """The parts of a message to the collector in place of its spans, for `OTLPSpanExporter.export`.

    It is a list, because `export` counts what it is given by `len`.
    """

    def SerializePartialToString(self) -> bytes:  # noqa: N802  the name that protobuf gives it
        """Return the message."""
        return b"".join(self)


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
        # An empty span is encoded once, and its resource and its scope are kept.
        (resource_spans,) = encode_spans([span]).resource_spans
        resource_spans.scope_spans[0].ClearField("spans")
        self._scope = resource_spans.scope_spans[0].SerializeToString()
        resource_spans.ClearField("scope_spans")
        self._resource = resource_spans.SerializeToString()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ksrv-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(EXPORT_INTERVAL_S):
            self._export()
        self._export()

    def _export(self) -> None:
        if spans := take_spans():
            # ExportTraceServiceRequest.resource_spans (1) = a resource and ResourceSpans.scope_spans (2) = a scope and
            # spans. The spans are last, so that they follow the rest unchanged.
            scope_head = length_prefix(2, len(self._scope) + len(spans)) + self._scope
            length = len(self._resource) + len(scope_head) + len(spans)
            parts = length_prefix(1, length), self._resource, scope_head, spans
            try:
                self._exporter.export(_EncodedSpans(parts))
            except Exception:
                log.exception("spans could not be exported")

    def stop(self) -> None:
        """Export the remaining spans."""
        self._stopped.set()
        self._thread.join(STOP_S)
        self._exporter.shutdown()
