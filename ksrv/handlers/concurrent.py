"""Runs handlers with coroutines: many batches at the same time, as tasks on the handler's event loop.

The loop has one thread. `self.context` of the handler is a `CurrentContext`: it returns the `TaskContext` of the batch
whose task runs. If no client waits for a batch any more, its task is cancelled.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from functools import cached_property, partial
from time import perf_counter_ns
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ksrv._native.batch.stages import WORKS_FOR, BoundContext, add_stage_time, no_batch
from ksrv.errors import Cancelled, KsrvError
from ksrv.handlers.base import BaseHandler
from ksrv.handlers.base_runner import BaseRunner
from ksrv.handlers.batch import Batch, check_answers, fail_rest
from ksrv.handlers.batch_threads import working_for
from ksrv.handlers.imports.import_lock import locked_imports
from ksrv.handlers.models import Models
from ksrv.handlers.streaming.streams import (
    GIVEN_UP,
    ChunkStream,
    is_given_up,
    is_stream,
    iterated,
    postprocessed,
)
from ksrv.request import ExecutorInputs, ExecutorOutputs

if TYPE_CHECKING:
    from ksrv.handlers.handler_context import HandlerContext

log = logging.getLogger("ksrv.handlers")

STAGES = ("handle", "preprocess", "inference", "postprocess", "explain")
STALL_SECONDS = 10.0
"""If a client takes no answer for this time while its stream is full, its request is ended, because the batch waits for
it."""
LOOP_SHARE_NS = 1_000_000
"""A stream that awaits nothing yields to other tasks after this time. It does not yield after each chunk, because a turn
of the event loop costs as much as many chunks."""

Done = Callable[[ExecutorOutputs | KsrvError], None]


def is_asynchronous(handler: Any) -> bool:
    """Tell whether a stage of a handler is a coroutine or an asynchronous generator, so that batches run
    concurrently.
    """
    stages = [getattr(handler, name, None) for name in STAGES]
    model = getattr(handler, "model", None)
    return any(
        inspect.iscoroutinefunction(stage) or inspect.isasyncgenfunction(stage)
        for stage in (*stages, model)
    )


class TaskContext(BoundContext):
    """The context of one batch among many. Everything that is not about the batch comes from the handler's context.

    Args:
        shared: The handler's context.
        make_batch: Makes the batch as handlers see it.
    """

    def __init__(
        self,
        shared: "HandlerContext",
        inputs: ExecutorInputs,
        make_batch: Callable[[ExecutorInputs], Batch],
    ) -> None:
        super().__init__(shared, inputs)
        self._shared = shared
        self._make_batch = make_batch
        self.stage = "handle"
        self.timings: dict[str, int] = {}

    @cached_property
    def models(self) -> Models:
        """See `Context.models`."""
        return Models(self._shared.submit, lambda: self.inputs)

    @property
    def batch(self) -> Batch:
        """See `Context.batch`."""
        if self.inputs is None:
            raise no_batch()
        if self.made is None:
            self.made = self._make_batch(self.inputs)
        made: Batch = self.made
        return made

    def made_batch(self) -> Batch | None:
        """Return the batch if a stage has asked for it, else None."""
        made: Batch | None = self.made
        return made

    def add_time(self, name: str, nanoseconds: int) -> None:
        """See `RunContext.add_time`."""
        add_stage_time(self.timings, name, nanoseconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)


class CurrentContext:
    """`self.context` of a handler with coroutines: the context of the batch whose task runs.

    Args:
        shared: The handler's context, for code that runs outside of tasks.
    """

    def __init__(self, shared: "HandlerContext") -> None:
        object.__setattr__(self, "_shared", shared)  # because `__setattr__` passes everything on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._current(), name, value)

    def _current(self) -> Any:
        bound = WORKS_FOR.get()
        is_here = isinstance(bound, TaskContext) and bound.owner is self._shared
        return bound if is_here else self._shared


class ConcurrentLoop:
    """The event loop of one handler."""

    def __init__(self, runner: BaseRunner) -> None:
        self._runner = runner
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        name = f"ksrv-{runner.source.name}-loop"
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        with locked_imports(), self._runner.inference_mode():
            while not self._closing:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    # A task of the handler raised this. asyncio also raises it in the code that waits for the task.
                    log.exception("a task of a handler ended its event loop, which continues")

    def begin(self, inputs: ExecutorInputs, done: Done) -> Callable[[], None]:
        """Start a batch as a task.

        Args:
            done: Called once with the answer, on the loop's thread.

        Returns:
            A function that any thread may call to cancel the task.
        """
        task: asyncio.Task[None] | None = None  # set once the loop has made it
        has_begun = False  # whether the task has run its first step

        async def run() -> None:
            nonlocal has_begun
            has_begun = True
            # No variable for the answer: it is sent without a copy only if nothing else refers to it.
            done(await self._run(inputs))

        def ended(ended_task: asyncio.Task[None]) -> None:
            self._tasks.remove(ended_task)
            if not has_begun:  # cancelled before its first step, so `run` has not called `done`
                done(Cancelled(GIVEN_UP))

        def start() -> None:
            nonlocal task
            task = self.loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(ended)

        def cancel() -> None:
            if task is not None:
                task.cancel(GIVEN_UP)

        self.loop.call_soon_threadsafe(start)
        return partial(self._call, cancel)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and its tasks with it
            self.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel all tasks and end the thread."""

        async def cancel_all() -> None:
            tasks = [task for task in self._tasks if not task.done()]
            for task in tasks:
                task.cancel(GIVEN_UP)
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loop.shutdown_asyncgens()
            self._closing = True
            self.loop.stop()

        stopping = cancel_all()
        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(stopping))
        # A task of the handler may ignore its cancellation. Then its loop stays open, with its daemon thread.
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self.loop.close()

    # ---- one batch --------------------------------------------------------------------------

    async def _run(self, inputs: ExecutorInputs) -> ExecutorOutputs | KsrvError:
        """Run the stages of a batch and return its answer."""
        runner = self._runner
        context = TaskContext(runner.context, inputs, runner.make_batch)
        failure: KsrvError | None = None
        made: ExecutorOutputs | None = None
        began = perf_counter_ns()
        try:
            with working_for(context):
                result = await self._stages(context)
                if is_stream(result):
                    made = await self._drain(result, inputs, context)
                else:
                    context.stage = "outputs"
                    made = runner.read_outputs(result, inputs)
                if context.made is not None:
                    check_answers(context.made)
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            if is_given_up(error):
                failure = Cancelled(GIVEN_UP)
            else:
                failure = runner.failure_of(error, context.stage, inputs)
        # Stages are not timed one by one here. Unless the handler has added a time for inference, the whole run counts.
        context.timings.setdefault("inference", perf_counter_ns() - began)
        batch = context.made
        context.release()
        if failure is not None and (batch is None or not fail_rest(batch, failure)):
            return failure
        made = made or ExecutorOutputs([])
        made.timings = context.timings
        if batch is not None:
            made.add_notes(batch)
        return made

    async def _stages(self, context: TaskContext) -> Any:
        """Run the stages, and await each stage that is a coroutine. Return the result, or a stream of results."""
        handler = self._runner.handler
        batch = context.batch
        if type(handler).handle is not BaseHandler.handle:
            return await _settled(handler.handle(batch, context))
        context.stage = "preprocess"
        inputs = await _settled(handler.preprocess(batch))
        if batch.explain:
            context.stage = "explain"
            return await _settled(handler.explain(batch, inputs))
        context.stage = "inference"
        # A batch is a mapping, too, but is passed whole.
        if isinstance(inputs, Mapping) and inputs is not batch:
            outputs = await _settled(handler.inference(**inputs))
        else:
            outputs = await _settled(handler.inference(inputs))
        if is_stream(outputs):
            return postprocessed(outputs, handler.postprocess)
        context.stage = "postprocess"
        return await _settled(handler.postprocess(outputs))

    async def _drain(
        self, chunks: Any, inputs: ExecutorInputs, context: TaskContext
    ) -> ExecutorOutputs:
        """Send the chunks of a stream, and return the final answer."""
        runner, sender = self._runner, inputs.emit
        context.stage = "inference"
        stream = ChunkStream(
            inputs,
            context.spec.outputs,
            runner.read_chunk,
            context.made_batch,
            partial(self._fail_request, inputs=inputs, context=context),
            waits=False,  # `wait_for_clients` waits instead, without blocking the loop
        )
        rested_ns = perf_counter_ns()
        async with aclosing(iterated(chunks, stream)) as running:
            async for chunk in running:
                if not stream.take(chunk):
                    break
                if perf_counter_ns() - rested_ns > LOOP_SHARE_NS:
                    await asyncio.sleep(0)
                    rested_ns = perf_counter_ns()
                if sender is not None:
                    await self.wait_for_clients(sender)
        return stream.result()

    def _fail_request(
        self, index: int, error: BaseException, *, inputs: ExecutorInputs, context: TaskContext
    ) -> None:
        failure = self._runner.failure_of(error, "inference", inputs)
        context.batch.failures.setdefault(index, failure)

    async def wait_for_clients(self, sender: Any) -> None:
        """Wait until every client has room for another chunk. Other tasks run meanwhile."""
        for index in sender.without_room():
            room = asyncio.Event()
            sender.call_with_room(index, partial(self._call, room.set))
            try:
                await asyncio.wait_for(room.wait(), STALL_SECONDS)
            except TimeoutError:
                sender.give_up(index)


async def _settled(result: Any) -> Any:
    return await result if type(result) is CoroutineType or inspect.isawaitable(result) else result
