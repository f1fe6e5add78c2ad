"""Traces requests by OpenTelemetry, if the setting `--trace otlp` is on. Needs the extra `otel`.

OpenTelemetry's environment variables configure the export: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
`OTEL_TRACES_SAMPLER`. Native code records the spans of requests (`ksrv._native.server.batch_spans`), and `SpanExport`
sends them. The provider is the process's global provider, so that spans which handlers create belong to the trace of
their request. A handler process creates a separate provider for the first batch that has a span.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from ksrv._native.server.batch_spans import ModelTracing

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"

RateOf: TypeAlias = Callable[[str], int]
"""Takes a model and returns N: one of N requests without a caller's span is traced; with 0 no request at all."""


class TracingError(RuntimeError):
    """OpenTelemetry is not installed, or a variable of its sampler is wrong."""


class _Tracing:
    """The tracing state of this process. Provider and export are None while nothing is traced."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.provider: Any = None
        self.export: Any = None
        self.models: WeakValueDictionary[tuple[str, str], ModelTracing] = WeakValueDictionary()
        self.rate_of: RateOf = lambda model: 1


_OF_PROCESS = _Tracing()


def check_installed() -> None:
    """Refuse to trace without OpenTelemetry, or with a sampler that ksrv does not know.

    Raises:
        TracingError: A package is missing, or a variable is wrong.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise TracingError(
            f"tracing needs OpenTelemetry ({error}): pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from error
    configured_sampler()


def configured_sampler() -> tuple[bool, float]:
    """Return whether the sampler follows the caller's decision, and the share of the other requests that it traces.

    Raises:
        TracingError: A variable is wrong.
    """
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    base = name.removeprefix("parentbased_")
    given = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    shares = {"always_on": "1", "always_off": "0", "traceidratio": given}
    if base not in shares:
        known = ", ".join([*shares, *(f"parentbased_{share}" for share in shares)])
        raise TracingError(f"OTEL_TRACES_SAMPLER is {name!r}; ksrv has the samplers {known}")
    try:
        share = float(shares[base])
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise TracingError(f"OTEL_TRACES_SAMPLER_ARG is {given!r}; it must be a number from 0 to 1")
    return base != name, share


def start() -> None:
    """Trace the requests of this process, unless it traces already."""
    from ksrv.observe.span_export import SpanExport

    provider = _start_provider()
    with _OF_PROCESS.lock:
        if _OF_PROCESS.export is None:
            _OF_PROCESS.export = SpanExport(provider.resource)


def _start_provider() -> Any:
    """Return the provider of this process, which handlers use too."""
    with _OF_PROCESS.lock:
        if _OF_PROCESS.provider is None:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            resource = Resource({"service.name": "ksrv"}).merge(Resource.create())
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
            _OF_PROCESS.provider = provider
        return _OF_PROCESS.provider


def stop() -> None:
    """Export the remaining spans, and end tracing."""
    with _OF_PROCESS.lock:
        provider, export = _OF_PROCESS.provider, _OF_PROCESS.export
        _OF_PROCESS.provider = _OF_PROCESS.export = None
    try:
        if export is not None:
            export.stop()
        if provider is not None:
            provider.shutdown()
    except Exception:
        log.exception("the last spans could not be exported")


def is_on() -> bool:
    """Return whether the requests of this process are traced."""
    return _OF_PROCESS.export is not None


def tracing_of(model: str, version: str) -> ModelTracing | None:
    """Return which requests of a model version are traced; None while nothing is traced."""
    if not is_on():
        return None
    from ksrv.observe import current_span

    with _OF_PROCESS.lock:
        made = _OF_PROCESS.models.get((model, version))
        if made is None:
            made = ModelTracing(model, version, *configured_sampler(), current_span)
            made.set_rate(_OF_PROCESS.rate_of(model))
            _OF_PROCESS.models[model, version] = made
        return made


def rate_by(rate_of: RateOf) -> None:
    """Trace so many requests of each model from now on."""
    with _OF_PROCESS.lock:
        _OF_PROCESS.rate_of = rate_of
        for (name, _), made in _OF_PROCESS.models.items():
            made.set_rate(rate_of(name))


def current_traceparent() -> str:
    """Return the `traceparent` of the span that is current on this thread; "" without one."""
    if _OF_PROCESS.provider is None:
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
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _start_provider()
    parent = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent}, context.Context())
    token = context.attach(parent)
    try:
        yield
    finally:
        context.detach(token)
