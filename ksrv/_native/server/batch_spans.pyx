# Needs the GIL: the current span is a Python object, and so are the errors of requests.
"""Traces the batches of a model; see native/trace/batch_trace.hpp.

While the handler runs, the batch's span is OpenTelemetry's current span. So the spans of the
handler, here or in a separate process, and of its calls to other models are children of that span.
"""

cimport cython
from libc.stdint cimport uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from native.base.clock cimport now_ns
from native.queue.request cimport (
    Request as CRequest, STATE_CANCELLED, STATE_EXPIRED,
)
from native.queue.stats cimport ReplyStage
from native.server.fast_path cimport FastRequest
from native.trace.batch_trace cimport (
    BatchTrace, TracedRequest, TracedRun, TraceRules, process_spans,
)

from ksrv._native.batch.batch cimport ExecutorOutputs
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.model_endpoint cimport FastHandle
from ksrv._native.server.request_batch cimport STAGES, RequestBatch, ksrv_stages

if not cython.compiled:
    from typing import Any


def take_spans() -> bytes:
    """Return the spans that wait, in OTLP's encoding of `ScopeSpans.spans`."""
    cdef vector[string] taken
    process_spans().batches.take(&taken)
    return b"".join(taken)


def lost_spans() -> int:
    """Return how many spans were dropped."""
    return process_spans().lost.load()


cdef class ModelTracing:
    """Which requests of a model version are traced.

    Args:
        follows_parent: Whether the caller decides, if the request has a caller's span.
        share: The share of all other requests that is traced, by the trace id.
        current: Makes a batch's span current, as the module `ksrv.observe.current_span`.
    """

    cdef object __weakref__
    cdef TraceRules rules
    cdef object current

    def __init__(
        self, model: str, version: str, bint follows_parent, double share, object current: Any
    ):
        self.rules.follows_parent = follows_parent
        self.rules.share = share
        self.rules.request_fields, self.rules.batch_fields = current.fields_of(model, version)
        self.current = current

    def set_rate(self, uint64_t rate) -> None:
        """Trace one of so many requests that have no caller's span; with 0 no request at all."""
        self.rules.rate.store(rate)
        self.rules.seen.store(0)

    def spans_of(self, RequestBatch batch not None) -> BatchSpans | None:
        """Return the spans of a batch, or None if none of its requests is traced."""
        cdef BatchSpans made = BatchSpans.__new__(BatchSpans)
        cdef FastRequest *request
        cdef bytes head
        cdef size_t i
        cdef TracedRequest *traced
        for i in range(<size_t>len(batch.handles)):
            handle = batch.handles[<Py_ssize_t>i]
            if type(handle) is FastHandle:
                request = <FastRequest *>(<NativeHandle>handle).native
                made.trace.add(self.rules, i, request.head(), request.head_length)
            else:
                head = self.current.head_of(handle.request.headers)
                made.trace.add(self.rules, i, head, <size_t>len(head))
        if made.trace.traced.empty():
            return None
        for i in range(made.trace.traced.size()):
            traced = &made.trace.traced[i]
            if not traced.state.empty():
                traced.state = self.current.valid_state(traced.state)
        made.model = self
        made.batch = batch
        made.handles = batch.handles
        made.run.taken_ns = now_ns() - batch.spent_ns
        return made


cdef class BatchSpans:
    """The spans of a batch with traced requests.

    As a context manager, makes the batch's span the current span.
    """

    cdef ModelTracing model
    cdef RequestBatch batch
    cdef list handles
    cdef BatchTrace trace
    cdef TracedRun run
    cdef object span, token, result

    def __enter__(self) -> None:
        cdef TracedRequest *first = &self.trace.traced[0]
        self.run.began_ns = now_ns()
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
        self.run.ended_ns = now_ns()
        self.result = result

    def end(self) -> None:
        """Hand the spans to the exporter, once the requests have ended."""
        cdef vector[const CRequest *] requests
        cdef ReplyStage stages[STAGES]
        cdef TracedRequest *traced
        cdef size_t i
        cdef dict failures = {}
        for handle in self.handles:
            requests.push_back((<NativeHandle>handle).native)
            self.run.rows += (<NativeHandle>handle).native.rows
        if isinstance(self.result, ExecutorOutputs):
            self.run.stages = stages
            self.run.stage_count = ksrv_stages(stages, self.batch, self.result)
            failures = (<ExecutorOutputs>self.result).failures
            error = None
        else:
            error = self.result
        if self.span is not None:
            self.trace.more = self.model.current.recorded(self.span, error)
        for i in range(self.trace.traced.size()):
            traced = &self.trace.traced[i]
            state = requests[traced.index].state.load()
            failed = error or failures.get(traced.index)
            if failed is not None or state == STATE_EXPIRED or state == STATE_CANCELLED:
                handle = self.handles[<Py_ssize_t>traced.index]
                traced.failure = self.model.current.failure(
                    failed or f"the request was {handle.state}"
                )
        self.trace.end(self.model.rules, requests.data(), requests.size(), self.run)
