# Needs the GIL: attributes are plain, without locks.
"""Runs a batch through the stages of a handler. Compiled, because every request takes this path.

`StageRunner.run` is the entry. A batch has two forms: `inputs`, the executor's `ExecutorInputs`,
and `made`, the `Batch` that a handler reads, which is made from the inputs on first use.
`RunContext` keeps both while the batch runs; `BoundContext` passes them to threads and coroutines
that the handler starts. `ksrv.handlers` has the rest: loading, the stages themselves, and the error
texts.
"""

import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
cimport cython
from libc.stdint cimport int64_t

from native.base.clock cimport now_ns

from ksrv._native.batch.batch cimport (
    ExecutorInputs, ExecutorOutputs, NOT_RUN, ksrv_batch_outputs, ksrv_timings,
)
from ksrv._native.tensor.declared_outputs cimport DeclaredOutputs
from ksrv._native.tensor.tensor cimport Tensor

from ksrv.errors import HandlerFailed
from ksrv.torch_interop import imported_torch

if not cython.compiled:
    from collections.abc import Callable
    from typing import Any

cnp.import_array()

cdef extern from *:
    """
    // The RunContext of the batch that this thread runs. A borrowed reference: the runner that set
    // it keeps the context alive.
    static thread_local PyObject *ksrv_running = nullptr;
    """
    PyObject *ksrv_running

cdef type GENERATOR = GeneratorType, ASYNC_GENERATOR = AsyncGeneratorType
cdef type COROUTINE = CoroutineType
cdef dict MODULES = sys.modules
cdef object MOST_NS = (1 << 63) - 1
cdef StageTimes NONE_RUN = StageTimes(NOT_RUN, NOT_RUN, NOT_RUN)


cdef bint _is_stream(object result) noexcept:
    """Whether a result is a generator or a coroutine, which yields or returns its value later.

    A list may have one generator for each row, so its first element decides.
    """
    if type(result) is list and len(<list>result) > 0:
        result = (<list>result)[0]
    kind = type(result)
    return kind is GENERATOR or kind is ASYNC_GENERATOR or kind is COROUTINE


WORKS_FOR: ContextVar[BoundContext | None] = ContextVar("works_for", default=None)
"""The batch that a coroutine, or a thread started by a handler, works for."""


def current_context() -> Any:
    """Return the context of the handler that runs on this thread, or None."""
    return None if ksrv_running == NULL else <object>ksrv_running


def bound_batch() -> BoundContext | None:
    """Return the batch that this thread runs or, if it runs none, the batch in `WORKS_FOR`."""
    if ksrv_running != NULL:
        return (<RunContext>ksrv_running).bind()
    return WORKS_FOR.get()


cdef class BoundContext:
    """The batch that threads and coroutines of a handler work for.

    All attributes are None after the batch has been answered.

    Attributes:
        owner: The context that runs the batch.
        inputs: The batch as the engine made it.
        made: The batch as handlers see it.
    """

    def __init__(
        self,
        object owner: Any,
        ExecutorInputs inputs: ExecutorInputs | None,
        object made: Any = None,
    ):
        self.owner = owner
        self.inputs = inputs
        self.made = made

    def release(self) -> None:
        """Drop all references to the batch, because it has been answered."""
        self.owner = self.inputs = self.made = None


def no_batch() -> HandlerFailed:
    """Return the error for `context.batch` in code that does not work for a batch."""
    return HandlerFailed(
        "the handler asked its context for the batch in code that works for none: in initialize,"
        " or in a thread that was not started by a stage, or that went on after the batch had its"
        " answer. Use context.batch in the stages and in threads that they start and wait for"
    )


cdef class RunContext:
    """The running batch of a handler's context.

    The batch belongs to the thread that runs it, and to the threads that its stages start.

    Args:
        make_batch: Makes the batch that handlers see from the inputs, or None.

    Attributes:
        stage: The stage that is running.
        passes_outputs_through: Whether `postprocess` is the default stage.
    """

    def __init__(self, make_batch: Callable[[ExecutorInputs], Any] | None = None):
        self.make_batch = make_batch
        self.stage = ""
        self.timings_by_stage = {}

    cdef BoundContext bind(self):
        """Return the running batch for threads that it starts. Called on the thread that runs
        it."""
        if self.bound is None:
            self.bound = BoundContext(self, self.inputs, self.batch)
        return self.bound

    cdef bint is_here(self) noexcept:
        """Whether this thread runs the batch."""
        return self.inputs is not None and self.thread == PyThread_get_thread_ident()

    cdef BoundContext bound_here(self):
        """Return the running batch if this thread was started by it, else None."""
        bound = WORKS_FOR.get()
        return bound if bound is not None and (<BoundContext?>bound).owner is self else None

    @property
    def timings(self) -> dict[str, int]:
        """Nanoseconds by stage of the running batch."""
        if self.inputs is not None and not self.is_here() and self.bound_here() is None:
            raise no_batch()
        if self.timings_by_stage is None:
            self.timings_by_stage = ksrv_timings(self.times)
        return self.timings_by_stage

    @timings.setter
    def timings(self, dict timings not None: dict[str, int]):
        self.timings_by_stage = timings

    @property
    def batch(self) -> Any:
        """The batch that this thread works for.

        Raises:
            HandlerFailed: The thread does not work for a batch.
        """
        cdef BoundContext bound
        if not self.is_here():
            bound = self.bound_here()
            if bound is None:
                raise no_batch()
            return bound.made
        # Made on first use: the default stages do not need it.
        if self.made is None and self.make_batch is not None:
            self.made = self.make_batch(self.inputs)
        return self.made

    def running_inputs(self) -> ExecutorInputs | None:
        """Return this thread's batch as the engine made it, or None if it has no batch."""
        cdef BoundContext bound
        if self.is_here():
            return self.inputs
        bound = self.bound_here()
        return None if bound is None else bound.inputs

    def made_batch(self) -> Any:
        """Return the running batch if a stage has read it, else None."""
        return self.made

    def timing_stage(self, name: str) -> bool:
        """Whether `name` is the stage that ksrv is already timing."""
        return self.stage == name

    def add_time(self, name: str, nanoseconds: int) -> None:
        """Add to the time of a stage in this batch.

        Args:
            name: A stage, or a name that the handler chose.

        Raises:
            HandlerFailed: The time is not a whole number of nanoseconds, or the sum exceeds 63
                bits.
        """
        add_stage_time(self.timings, name, nanoseconds)


def add_stage_time(dict timings not None: dict[str, int], name: str, nanoseconds: int) -> None:
    """Add to the time of a stage; see `RunContext.add_time`."""
    if not isinstance(name, str):
        raise HandlerFailed(
            f"the handler called context.add_time({_shown(name)}, ...); expected the stage's name"
            f" as a str"
        )
    integer = isinstance(nanoseconds, (int, cnp.integer)) and not isinstance(nanoseconds, bool)
    if not integer or not 0 <= (total := int(nanoseconds) + timings.get(name, 0)) <= MOST_NS:
        raise HandlerFailed(
            f"the handler called context.add_time({_shown(name)}, {_shown(nanoseconds)});"
            f" expected nanoseconds as a whole number from 0, such as time.perf_counter_ns()"
            f" - start; the times of a stage in one batch may add up to {MOST_NS}"
        )
    timings[name] = total


cdef str _shown(object value):
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an int of {value.bit_length()} bits"  # repr() refuses the largest
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


cpdef object infer_and_postprocess(
    object handler, object inputs, RunContext context: Any, int64_t began
):
    """Run inference and postprocess on the value that `preprocess` returned.

    Args:
        inputs: The value that `preprocess` returned.
        began: The monotonic clock in nanoseconds when the previous stage ended.

    Returns:
        The value that `postprocess` returned.
    """
    cdef int64_t now
    context.stage = "inference"
    torch = MODULES.get("torch")
    if torch is not None:
        torch = imported_torch()  # slower; None while another thread still imports torch
    if torch is not None:
        with torch.inference_mode():
            outputs = _infer(handler, inputs, context)
    else:
        outputs = _infer(handler, inputs, context)
    if _is_stream(outputs):
        return handler._stream(outputs)
    now = now_ns()
    _note(context, "inference", &context.times.inference, now - began)
    if context.passes_outputs_through:
        _note(context, "postprocess", &context.times.postprocess, 0)
        return outputs
    context.stage = "postprocess"
    result = handler.postprocess(outputs)
    _note(context, "postprocess", &context.times.postprocess, now_ns() - now)
    return result


cdef int _note(RunContext context, str name, int64_t *stage, int64_t nanoseconds) except -1:
    """Store the time of a default stage. A dict is used only if one exists already."""
    if context.timings_by_stage is None:
        stage[0] = nanoseconds
    else:
        context.add_time(name, nanoseconds)
    return 0


cdef int _note_outputs(RunContext context, int64_t nanoseconds) except -1:
    """Add the time for making the answer's tensors to postprocess, if this stage was timed.

    A handler with a custom `handle` may have run no such stage.
    """
    if context.timings_by_stage is None:
        if context.times.postprocess != NOT_RUN:
            context.times.postprocess += nanoseconds
    elif "postprocess" in context.timings_by_stage:
        context.add_time("postprocess", nanoseconds)
    return 0


cdef object _infer(handler, inputs, RunContext context):
    # isinstance() with an abstract class would run Python code for an array.
    if cnp.PyArray_CheckExact(inputs):
        return handler.inference(inputs)
    if inputs is context.made:
        return handler.inference(inputs)  # the batch, passed on unchanged by `preprocess`
    if type(inputs) is dict or isinstance(inputs, Mapping):
        return handler.inference(**inputs)
    return handler.inference(inputs)


cdef class RunnerCalls:
    """Runs batches with a runner of this process. The base of the inline executor.

    The inline executor defines `_not_loaded`.

    Attributes:
        runner: The runner, or None while the model is not loaded.
    """

    cdef public object runner

    def run(self, batch: ExecutorInputs, deadline_ns: int | None) -> ExecutorOutputs:
        """See `Executor.run`. A deadline cannot end a handler that runs in this process."""
        if self.runner is None:
            raise self._not_loaded()
        try:
            return self.runner.run(batch)
        except MemoryError as error:
            raise HandlerFailed("the server ran out of memory while the handler ran") from error


cdef class StageRunner:
    """Runs batches through a handler. The base of `ksrv.handlers.runner.Runner`.

    The methods without a definition here (`_drain`, `read_outputs`, `failure_of`, `_check_answers`,
    `_fail_rest`, `_not_loaded`) are defined by `Runner` and its base `BaseRunner`.

    Attributes:
        handler: The handler object, or None before it is loaded.
        context: The handler's context, or None.
        outputs: Reads the handler's results.
        declared: Fast reader for results that have exactly the declared form, or None.
        passes_inputs_through: Whether all stages before inference are the default stages.
        steps: Functions around each batch, outermost first. Each gets the function that runs the
            rest, and the batch.
    """

    cdef public object handler
    cdef public object outputs
    cdef public RunContext context
    cdef public DeclaredOutputs declared
    cdef public bint passes_inputs_through
    cdef public list steps

    context: Any
    declared: DeclaredOutputs | None
    steps: list[
        Callable[[Callable[[ExecutorInputs], ExecutorOutputs], ExecutorInputs], ExecutorOutputs]
    ]

    def run(self, ExecutorInputs inputs not None) -> ExecutorOutputs:
        """Run one batch.

        Returns:
            The outputs, the failures of single requests, and the stages' times.

        Raises:
            KsrvError: The whole batch failed.
        """
        if not self.steps:
            return self.stages(inputs)
        run = self.run_stages
        for step in reversed(self.steps):
            run = partial(step, run)
        return run(inputs)

    def run_stages(self, ExecutorInputs inputs not None) -> ExecutorOutputs:
        """Run one batch without the steps; see `run`."""
        return self.stages(inputs)

    cdef ExecutorOutputs stages(self, ExecutorInputs inputs):
        """Run the stages. The context refers to the batch until they have ended."""
        cdef RunContext context = self.context
        cdef ExecutorOutputs made = None
        cdef object failure = None
        cdef int64_t began
        cdef PyObject *outer
        global ksrv_running
        if context is None:
            raise self._not_loaded()
        context.inputs = inputs
        context.thread = PyThread_get_thread_ident()
        context.timings_by_stage = None
        context.times = NONE_RUN
        context.stage = "handle"
        outer = ksrv_running  # nested: a handler that calls another model may run it on this thread
        ksrv_running = <PyObject *>context
        began = now_ns()
        try:
            arrays = self.arrays(inputs)
            if arrays is None:
                result = self.handler.handle(context.batch, context)
                if not context.timings:  # a custom `handle` may not have run any timed stage
                    context.timings = {"inference": now_ns() - began}
            else:
                context.times.preprocess = 0
                result = infer_and_postprocess(self.handler, arrays, context, began)
            if _is_stream(result):
                context.stage = "inference"
                made = self._drain(result, inputs)
            else:
                context.stage = "outputs"
                began = now_ns()
                made = self.read(result, inputs)
                _note_outputs(context, now_ns() - began)
            result = None  # so that no reference to the outputs is left besides `made`
            if context.made is not None:
                self._check_answers(context.made)
        except BaseException as error:
            failure = self.failure_of(error, context.stage, inputs)
        finally:
            batch = context.made
            # The context lives as long as the handler, and must not keep the batch's memory alive.
            context.inputs = context.made = None
            if context.bound is not None:
                context.bound.release()
                context.bound = None
            context.stage = ""
            ksrv_running = outer
        if failure is not None:
            # Raises unless the handler itself failed some requests, whose errors must be kept.
            self._fail_rest(failure, batch)
            made = ExecutorOutputs([])
        made.times = context.times
        made.timings_by_stage = context.timings_by_stage
        if batch is not None:
            made.add_notes(batch)
        return made

    cdef object arrays(self, ExecutorInputs inputs):
        """Return the inputs if the default preprocess would pass them on unchanged, else None."""
        # With a model, the default preprocess may turn arrays into torch tensors.
        if not self.passes_inputs_through or inputs.explain or self.handler.model is not None:
            return None
        for value in inputs.tensors.values():
            if not cnp.PyArray_CheckExact((<Tensor?>value).data):
                return None
            if len(inputs.tensors) == 1:
                return (<Tensor>value).data
        return {name: (<Tensor>value).data for name, value in inputs.tensors.items()}

    cdef ExecutorOutputs read(self, object result, ExecutorInputs inputs):
        """Return the tensors of a result: with the fast reader if possible, else with Python.

        `stages` sets the times of the outputs.
        """
        cdef list found = None
        if self.declared is not None and not inputs.explain:
            found = self.declared.tensors(result, inputs.rows)
        if found is None:
            return self.read_outputs(result, inputs)
        return ksrv_batch_outputs(found, NONE_RUN, None)
