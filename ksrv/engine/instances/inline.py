"""The inline executor: the handler runs in this process, on the thread that calls `run`."""

import sys
from collections.abc import Callable, Sequence
from functools import partial

from ksrv._native.batch.stages import RunnerCalls
from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed
from ksrv.handlers.concurrent import Done
from ksrv.handlers.devices.lost import note_lost
from ksrv.handlers.diagnostics.metrics import Emit, discard
from ksrv.handlers.imports.import_lock import locked_imports
from ksrv.handlers.models import Submit, refuse_calls
from ksrv.handlers.runner import HandlerLoadError, Runner, load_unchanged, make_runner
from ksrv.model.config import ModelSource
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs

NETWORK_BYTES = 256 << 20
"""Freed memory of a network's layers that malloc keeps for the next batch. Mapping it anew would take a seventh of the
batch's time."""


class InlineExecutor(RunnerCalls):
    """One instance of a model in this process.

    A handler that hangs cannot be stopped here: its requests are answered at their deadlines, and
    the instance counts as unavailable until the handler returns. `RunnerCalls` has `run` and the attribute `runner`,
    which is None until `start` and after `close`.

    Args:
        threads: CPU threads that the handler may use; 0 leaves the framework's choice.
        emit: Takes the values that the handler reports.
        submit: Submits the handler's calls to other models.
        make: Makes the runner; by default the runner that the model's settings name.
    """

    runner: Runner | None
    keeps_deadlines = False
    ring = None

    def __init__(
        self,
        source: ModelSource,
        *,
        instance: int = 0,
        threads: int = 0,
        emit: Emit = discard,
        submit: Submit = refuse_calls,
        make: Callable[..., Runner] = make_runner,
    ) -> None:
        self._make_runner = partial(make, source, instance=instance, threads=threads, emit=emit)
        self._source = source
        self._submit = submit
        self._lost = ""  # the name of the device, once it has failed
        config = source.config
        # A compiled model may keep state for its thread (CUDA graphs do).
        self.any_thread = config is not None and config.pt2 is None

    @property
    def alive(self) -> bool:
        """See `Executor.alive`."""
        return self.runner is not None and not self._lost

    def start(self) -> ModelSpec:
        """See `Executor.start`."""
        if self._lost:
            raise HandlerFailed(f"the device {self._lost} works no more in this process")
        try:
            with locked_imports():
                runner = self._make_runner()
                runner.submit = self._submit
                runner.on_device_lost = self._note_lost
                spec = load_unchanged(runner, self._source)
        except HandlerLoadError as error:
            raise HandlerFailed(str(error)) from error
        # A network may run here: torch is loaded, or a loader of model files has set the platform.
        if "torch" in sys.modules or spec.platform not in ("python", "ensemble"):
            buffer_pool.keep_freed(NETWORK_BYTES)
        self.runner = runner
        return spec

    def lease(self, nbytes: int) -> buffer_pool.Block:
        """See `Executor.lease`."""
        runner = self.runner
        return buffer_pool.lease(nbytes) if runner is None else runner.lease(nbytes)

    def begin(
        self, batch: ExecutorInputs, done: Done, deadline_ns: int | None
    ) -> Callable[[], None]:
        """Run a batch while other batches run. Only for handlers with coroutines; see `Runner.begin`.

        Args:
            done: Called once with the answer.
            deadline_ns: Ignored, because nothing can stop a handler in this process.

        Raises:
            HandlerFailed: The model is not loaded.
        """
        if self.runner is None:
            raise self._not_loaded()
        batch.beside_others = True
        return self.runner.begin(batch, done)

    def _not_loaded(self) -> HandlerFailed:
        return HandlerFailed(f"the model {self._source.name} is not loaded")

    def _note_lost(self, device: str) -> None:
        self._lost = device
        note_lost(device)

    def end_sequences(self, numbers: Sequence[int]) -> None:
        """See `Executor.end_sequences`."""
        if self.runner is not None:
            self.runner.sequences.end(numbers)

    def on_death(self, callback: Callable[[str], None]) -> None:
        """See `Executor.on_death`. Never called, because the handler has no process."""

    def close(self) -> None:
        """See `Executor.close`."""
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.close()
