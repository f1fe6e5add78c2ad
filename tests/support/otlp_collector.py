"""A collector of OpenTelemetry's protocol over HTTP: it keeps the spans that processes export."""

import contextlib
import gzip
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Spans:
    """Spans that were exported to a collector.

    Attributes:
        answering: Clear it, and the collector answers nobody until it is set again.
    """

    url: str
    certificate: str = ""
    all: list[Any] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answering.set()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a server exports here, soon."""
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        if self.certificate:
            variables["OTEL_EXPORTER_OTLP_CERTIFICATE"] = self.certificate
            # requests prefers these to the exporter's settings.
            variables |= {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
        return variables

    def of_trace(self, trace_id: str) -> list[Any]:
        return [span for span in self.all if span.trace_id.hex() == trace_id]

    def named(self, name: str) -> int:
        """How many spans of a name there are so far."""
        return sum(span.name == name for span in self.all)


@contextlib.contextmanager
def collecting(key: Path | None = None, cert: Path | None = None) -> Iterator[Spans]:
    """Yield what a collector on a free port receives."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.all.extend(scope.spans)
            spans.answering.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    spans = Spans(f"http://127.0.0.1:{server.server_port}")
    if cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        spans = Spans(f"https://127.0.0.1:{server.server_port}", str(cert))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield spans
    finally:
        server.shutdown()
        server.server_close()
