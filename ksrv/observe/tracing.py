"""Traces requests by OpenTelemetry, if the setting `--trace otlp` is on. Needs the extra `otel`.

OpenTelemetry's environment variables configure the export: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
`OTEL_TRACES_SAMPLER`. The provider is the process's global provider, so that spans which handlers create belong to the
trace of their request. A handler process creates a separate provider for the first batch that has a span.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"

Sampler: TypeAlias = Callable[[str, Mapping[str, str]], bool]
"""Takes the model and the headers of a request, and returns whether the request is traced."""


class TracingError(RuntimeError):
    """OpenTelemetry is not installed."""


class _Tracing:
    """The tracing state of this process. Provider and tracer are None while nothing is traced."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.provider: Any = None
        self.tracer: Any = None
        self.sampler: Sampler = lambda model, headers: True


_OF_PROCESS = _Tracing()


def check_installed() -> None:
    """Refuse to trace without OpenTelemetry.

    Raises:
        TracingError: A package is missing.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise TracingError(
            f"tracing needs OpenTelemetry ({error}); install it with: pip install 'ksrv[otel]'"
        ) from error


def start() -> Any:
    """Start tracing, unless this process traces already, and return the tracer."""
    with _OF_PROCESS.lock:
        if _OF_PROCESS.tracer is None:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            resource = Resource({"service.name": "ksrv"}).merge(Resource.create())
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
            use(provider)
        return _OF_PROCESS.tracer


def use(provider: Any) -> None:
    """Trace with a provider; None ends tracing.

    Args:
        provider: An `opentelemetry.trace.TracerProvider`.
    """
    _OF_PROCESS.provider = provider
    _OF_PROCESS.tracer = None if provider is None else provider.get_tracer("ksrv")


def stop() -> None:
    """Export the remaining spans, and end tracing."""
    with _OF_PROCESS.lock:
        provider = _OF_PROCESS.provider
        use(None)
    if provider is not None:
        try:
            provider.shutdown()
        except Exception:
            log.exception("the last spans could not be exported")


def tracer() -> Any:
    """Return the tracer of this process; None while nothing is traced."""
    return _OF_PROCESS.tracer


def sample_by(sampler: Sampler) -> None:
    """Trace the requests for which a sampler returns True, instead of all."""
    _OF_PROCESS.sampler = sampler


def is_traced(model: str, headers: Mapping[str, str]) -> bool:
    """Return whether the next request of a model is traced."""
    return _OF_PROCESS.sampler(model, headers)


def context_of(headers: Mapping[str, str]) -> Any:
    """Return the context in a request's `traceparent` and `tracestate`."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = (TRACEPARENT, "tracestate")
    carrier = {name: headers[name] for name in names if name in headers}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def current_traceparent() -> str:
    """Return the `traceparent` of the span that is current on this thread; "" without one."""
    if _OF_PROCESS.tracer is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT, "")


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Make the span of another process current. Does nothing for ""."""
    if not traceparent:
        yield
        return
    from opentelemetry import context

    start()
    token = context.attach(context_of({TRACEPARENT: traceparent}))
    try:
        yield
    finally:
        context.detach(token)
