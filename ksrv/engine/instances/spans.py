"""The OpenTelemetry spans of a batch and its requests.

Every request has a server span, a child of the caller's span: it begins when the request is queued and ends with the
answer. Its child `ksrv.queue` is the time in the queue. The span `ksrv.batch` is a child of the first sampled request,
and has the stages as children. It links to the other requests, and they link to it. While the handler runs, the batch's
span is the current span. So the spans of the handler, here or in a separate process, and of its calls to other models
are children of that span.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from ksrv._native.server.request_batch import RequestBatch
from ksrv.errors import KsrvError
from ksrv.observe import tracing
from ksrv.request import ExecutorInputs, ExecutorOutputs

STAGES = ("preprocess", "inference", "explain", "postprocess")
"""The stages that run one after the other. Other times that a handler reports may overlap them, so they are
attributes."""


class RequestSpans:
    """The spans of one batch.

    Args:
        name: The model's name.
        version: The model's version, or "".
    """

    def __init__(self, tracer: Any, batch: RequestBatch, name: str, version: str) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = tracer
        # Adds to a monotonic time to make it the wall-clock time that spans have.
        self._shift = time.time_ns() - time.monotonic_ns()
        self._batch = batch
        self._handles = list(batch.handles)
        self._began = time.monotonic_ns()
        self._assembled_before = batch.spent_ns
        self._names = {"ksrv.model.name": name, "ksrv.model.version": version}
        self._span: Any = None
        self._run_began = 0
        self.failures: dict[int, KsrvError] = {}
        self.error: BaseException | None = None
        self.spans = [self._request_span(handle, name) for handle in self._handles]

    def _request_span(self, handle: Any, name: str) -> Any:
        request = handle.request
        began = handle.enqueued_ns or self._began
        if not tracing.is_traced(name, request.headers):
            return self._trace.INVALID_SPAN
        span = self._tracer.start_span(
            f"infer {name}",
            context=tracing.context_of(request.headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=began + self._shift,
            attributes={
                **self._names,
                "ksrv.request.id": request.headers.get("x-request-id", ""),
                "ksrv.request.rows": handle.rows,
            },
        )
        self._child(span, "ksrv.queue", began, self._began - self._assembled_before)
        return span

    def _child(self, parent: Any, name: str, began: int, ended: int) -> None:
        if parent.is_recording():
            span = self._tracer.start_span(
                name,
                context=self._trace.set_span_in_context(parent),
                start_time=began + self._shift,
            )
            span.end(max(began, ended) + self._shift)

    def run(self, inputs: ExecutorInputs, call: Callable[[], ExecutorOutputs]) -> ExecutorOutputs:
        """Run the handler below the batch's span.

        Args:
            inputs: The batch as the executor takes it.
        """
        try:
            with self.begin(inputs):
                outputs = call()
        except BaseException as error:
            self.finish(error)
            raise
        self.finish(outputs)
        return outputs

    @contextlib.contextmanager
    def begin(self, inputs: ExecutorInputs) -> Iterator[None]:
        """Begin the batch's span, which is the current span within the context.

        Args:
            inputs: The batch as the executor takes it.
        """
        sampled = [span for span in self.spans if span.is_recording()]
        if not sampled:
            yield
            return
        first, *others = sampled
        began = self._run_began = time.monotonic_ns()
        span = self._span = self._tracer.start_span(
            "ksrv.batch",
            context=self._trace.set_span_in_context(first),
            start_time=began + self._shift,
            links=[self._trace.Link(other.get_span_context()) for other in others],
            attributes={
                **self._names,
                "ksrv.batch.rows": inputs.rows,
                "ksrv.batch.requests": len(self.spans),
            },
        )
        for other in others:
            other.add_link(span.get_span_context())
        if self._batch.spent_ns:
            at = self._began - self._assembled_before
            self._child(first, "ksrv.assemble", at, at + self._batch.spent_ns)
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def finish(self, result: ExecutorOutputs | BaseException) -> None:
        """End the batch's span.

        Args:
            result: The outputs of the batch, or the error that ended it.
        """
        span = self._span
        if isinstance(result, BaseException):
            self.error = result
        else:
            self.failures = dict(result.failures)
        if span is None:
            return
        if self.error is not None:
            self._fail(span, self.error)
        elif not isinstance(result, BaseException):
            at = self._run_began
            for stage, nanoseconds in result.timings.items():
                if stage in STAGES:
                    self._child(span, f"ksrv.{stage}", at, at + nanoseconds)
                    at += nanoseconds
                else:
                    span.set_attribute(f"ksrv.time.{stage}_ms", nanoseconds / 1e6)
        span.end()

    def end(self) -> None:
        """End the spans of the requests, each with its error if it has one."""
        for index, (handle, span) in enumerate(zip(self._handles, self.spans, strict=True)):
            error = self.error or self.failures.get(index)
            if error is not None:
                self._fail(span, error)
            elif handle.state in ("expired", "cancelled"):
                span.set_status(self._trace.StatusCode.ERROR, f"the request was {handle.state}")
            ended = handle.ended_ns or time.monotonic_ns()
            span.end(ended + self._shift)

    def _fail(self, span: Any, error: BaseException) -> None:
        text = error.message if isinstance(error, KsrvError) else type(error).__name__
        span.set_status(self._trace.StatusCode.ERROR, text)
        span.set_attribute("error.type", type(error).__name__)


def trace_of(batch: RequestBatch, name: str, version: str) -> RequestSpans | None:
    """Return the spans of a batch; None while nothing is traced."""
    tracer = tracing.tracer()
    return None if tracer is None else RequestSpans(tracer, batch, name, version)
