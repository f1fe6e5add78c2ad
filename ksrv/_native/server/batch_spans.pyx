# Needs the GIL: the current span is a Python object, and so are the errors of requests.
"""Traces the batches of a model; see native/trace/batch_trace.hpp.

While the handler runs, the batch's span is OpenTelemetry's current span. So the spans of the handler,
here or in a separate process, and of its calls to other models are children of that span.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from native.base.clock cimport now_ns
from native.queue.request cimport NOWHERE, Request as CRequest
from native.queue.stats cimport ReplyStage
from native.server.fast_path cimport FastRequest
from native.trace.batch_trace cimport TracedRequest, TracedRun
from native.trace.span_log cimport process_spans

from ksrv._native.batch.batch cimport ExecutorOutputs
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.server.request_batch cimport STAGES, ksrv_stages

if not cython.compiled:
    from typing import Any


def open_span_log(bint follows_parent, double share) -> None:
    """Keep the spans of traced requests from now on, for `take_spans`.

    Args:
        follows_parent: Whether the caller of a request decides, if the request has a caller's span.
        share: The share of all other requests that is traced, by the trace id.
    """
    process_spans().sampler.follows_parent = follows_parent
    process_spans().sampler.share = share
    process_spans().set_open(True)


def close_span_log() -> None:
    """Drop new spans. `take_spans` returns the spans that wait, then None."""
    process_spans().set_open(False)


def take_spans(int64_t wait_ns) -> bytes | None:
    """Return spans in OTLP's encoding of `ScopeSpans.spans`, or None once the log is closed and empty.

    Args:
        wait_ns: How long to wait, unless many spans wait already.
    """
    cdef string taken
    cdef bint is_open
    with nogil:
        is_open = process_spans().take(now_ns() + wait_ns, &taken)
    return taken if is_open else None


def lost_spans() -> int:
    """Return how many spans were dropped."""
    return process_spans().lost.load()


cdef class ModelTracing:
    """Which requests of a model version are traced.

    Args:
        current: Makes a batch's span current, as the module `ksrv.observe.current_span`.
    """

    def __init__(self, model: str, version: str, object current: Any):
        self.rules.model = model.encode()
        self.rules.version = version.encode()
        self.current = current

    def set_rate(self, uint64_t rate) -> None:
        """Trace one of so many requests that have no caller's span; with 0 no request at all."""
        self.rules.rate.store(rate)
        self.rules.seen.store(0)


cdef BatchSpans ksrv_spans_of(RequestBatch batch, ModelTracing model):
    cdef BatchSpans made
    cdef BatchTrace trace
    cdef FastRequest *request
    cdef bytes head
    cdef size_t i
    cdef TracedRequest *traced
    for i in range(<size_t>len(batch.handles)):
        handle = batch.handles[<Py_ssize_t>i]
        if type(handle) is FastHandle:
            request = <FastRequest *>(<NativeHandle>handle).native
            trace.add(model.rules, i, request.head(), request.head_length)
        else:
            head = _head_of(handle.request.headers)
            trace.add(model.rules, i, head, <size_t>len(head))
    if trace.empty():
        return None
    for i in range(trace.traced.size()):
        traced = &trace.traced[i]
        if not traced.state.empty():
            traced.state = model.current.valid_state(traced.state)
    made = BatchSpans.__new__(BatchSpans)
    made.model = model
    made.batch = batch
    made.handles = batch.handles
    made.trace = trace
    made.taken_ns = now_ns() - batch.spent_ns
    return made


cdef bytes _head_of(object headers):
    cdef list lines = []
    for name in ("traceparent", "tracestate", "x-request-id"):
        value = headers.get(name)
        if value is not None:
            lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("utf-8", "replace")


cdef class BatchSpans:
    """The spans of a batch with traced requests. As a context manager, makes the batch's span current."""

    def __enter__(self) -> None:
        cdef TracedRequest *first = &self.trace.traced[0]
        self.began_ns = now_ns()
        self.span, self.token = self.model.current.enter(
            (<const char *>first.trace)[:16], (<const char *>self.trace.span)[:8], first.state
        )

    def __exit__(self, *_: object) -> None:
        self.model.current.leave(self.token)

    def finish(self, object result: Any) -> None:
        """End the batch's span.

        Args:
            result: The outputs of the batch, or the error that ended it.
        """
        self.ended_ns = now_ns()
        if isinstance(result, BaseException):
            self._fail(NOWHERE, result)
            return
        self.outputs = result
        for index, error in (<ExecutorOutputs?>result).failures.items():
            self._fail(index, error)

    cdef int _fail(self, size_t index, object error) except -1:
        cdef bytes text = self.model.current.error_text(error).encode("utf-8", "replace")
        cdef bytes kind = type(error).__name__.encode("utf-8", "replace")
        self.trace.fail(index, text, kind)
        return 0

    def end(self) -> None:
        """Hand the spans to the exporter, once the requests have ended."""
        cdef vector[const CRequest *] requests
        cdef ReplyStage stages[STAGES]
        cdef TracedRun run
        run.taken_ns = self.taken_ns
        run.began_ns = self.began_ns
        run.ended_ns = self.ended_ns
        for handle in self.handles:
            requests.push_back((<NativeHandle>handle).native)
            run.rows += (<NativeHandle>handle).native.rows
        run.stages = stages
        if self.outputs is not None:
            run.stage_count = ksrv_stages(stages, self.batch, self.outputs)
        if self.span is not None:
            self.trace.more = self.model.current.recorded(self.span)
        self.trace.end(self.model.rules, requests.data(), requests.size(), run)
