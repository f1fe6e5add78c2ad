"""The base of the runners of handlers that are written for other servers, and imports from their folders.

The file of a handler may change after ksrv has read it. So imports from the model's folder use the sources that were
read for the load (`HeldSourceFinder`), and all instances of a version run the same code.
"""

import asyncio
import logging
import queue
import sys
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any, TypeVar

from ksrv.errors import Cancelled, KsrvError
from ksrv.handlers.concurrent import ConcurrentLoop
from ksrv.handlers.diagnostics.debugging import profiled
from ksrv.handlers.imports.folder_modules import error_with_location
from ksrv.handlers.imports.loaded_files import HeldSourceLoader, HeldSources
from ksrv.handlers.runner import HandlerLoadError, Runner
from ksrv.handlers.streaming.streams import GIVEN_UP, is_given_up
from ksrv.model.config import ModelConfig
from ksrv.model.spec import ModelSpec
from ksrv.request import ExecutorInputs, ExecutorOutputs

log = logging.getLogger("ksrv.dialects")

T = TypeVar("T")


class ForeignRunner(Runner):
    """Runs a handler by the rules of the server that it is written for, instead of ksrv's stages.

    A subclass loads the handler in `_load`, and runs a batch in `begin(inputs, done)`, which calls `done` with the
    outputs or the error, or else overrides `_run`.
    """

    def load(self) -> ModelSpec:
        """Load the handler.

        Raises:
            HandlerLoadError: The handler cannot be loaded; the cause is chained.
        """
        config = self.source.config
        if config is None or self.source.error:
            raise HandlerLoadError(self.source.error or f"{self.source.folder} has no settings")
        try:
            return self._load(config)
        except BaseException as error:  # a handler may call sys.exit
            log.error("%s cannot be loaded", self._shown(), exc_info=error)
            text = " ".join(error_with_location(self.source.root, error).split())
            if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
                text += f"; install the package that has {error.name} for {sys.executable}"
            raise HandlerLoadError(
                f"the model {self.source.name} cannot be loaded: {text}"
            ) from error

    @abstractmethod
    def _load(self, config: ModelConfig) -> ModelSpec:
        """Load the handler, and return the model's description."""

    def run(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Run one batch.

        Raises:
            KsrvError: The whole batch failed.
        """
        return profiled(self._run, inputs) if self.source.debug else self._run(inputs)

    def _run(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Run one batch; see `run`. By default, begin it and wait until it is done."""
        answered: queue.SimpleQueue[ExecutorOutputs | KsrvError] = queue.SimpleQueue()
        self.begin(inputs, answered.put)
        outcome = answered.get()
        if isinstance(outcome, KsrvError):
            raise outcome
        return outcome

    def _hold_sources(self, folder: Path) -> None:
        """Make imports from a folder of `sys.path` use the sources that were read for the load."""
        if self.source.loaded is not None:
            # The new finder replaces the finder of an earlier load of this folder.
            rest = [hook for hook in sys.meta_path if getattr(hook, "folder", None) != str(folder)]
            held = HeldSources(self.source.loaded.sources)
            sys.meta_path[:] = [HeldSourceFinder(held, str(folder)), *rest]


class ConcurrentForeignRunner(ForeignRunner):
    """Runs a handler whose coroutines share one event loop, so that several batches are under way at a time.

    A subclass answers a batch in `answer`.
    """

    @abstractmethod
    async def answer(self, inputs: ExecutorInputs) -> ExecutorOutputs:
        """Return the answer of a batch.

        Raises:
            KsrvError: The whole batch failed.
        """

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, and return its result. Called on another thread."""
        self._concurrent = self._concurrent or _Tasks(self)
        return asyncio.run_coroutine_threadsafe(coroutine, self._concurrent.loop).result()

    async def send(self, part: ExecutorOutputs, inputs: ExecutorInputs) -> None:
        """Send a part of an answer, and wait until every client has room for another."""
        inputs.emit(part)
        assert self._concurrent is not None
        await self._concurrent.wait_for_clients(inputs.emit)

    def close(self) -> None:
        """End the event loop."""
        if self._concurrent is not None:
            self._concurrent.close()
            self._concurrent = None


class _Tasks(ConcurrentLoop):
    """The event loop of a `ConcurrentForeignRunner`."""

    async def _run(self, inputs: ExecutorInputs) -> ExecutorOutputs | KsrvError:
        runner: Any = self._runner
        began = perf_counter_ns()
        try:
            made: ExecutorOutputs = await runner.answer(inputs)
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            if is_given_up(error):
                return Cancelled(GIVEN_UP)
            failure: KsrvError = runner.failure_of(error, "predict", inputs)
            return failure
        made.timings = {"inference": perf_counter_ns() - began}
        return made


def find_class(path: str, folder: Path) -> Any:
    """Return the class that a handler's settings name as `module.Class`.

    Args:
        folder: The model's folder, which is in `sys.path`.

    Raises:
        ImportError: The module or the class is missing.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        package = module.partition(".")[0]
        if error.name not in (package, module, name):
            raise
        known = ", ".join(sorted(one.name for one in folder.glob("*.py"))) or "no Python file"
        raise ImportError(
            f"{path} cannot be imported: {error}; the folder has {known}; a package needs pip install "
            f"{package.replace('_', '-')}"
        ) from error


class HeldSourceFinder:
    """Finds the modules of one folder of `sys.path` among the files that were read for the load."""

    def __init__(self, sources: HeldSources, folder: str) -> None:
        self._sources = sources
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        places = sys.path if path is None else path
        folders = [place for place in map(str, places) if Path(place).is_relative_to(self.folder)]
        return self._sources.spec(
            name, folders, lambda module, file: HeldSourceLoader(module, file, self._sources)
        )


def find_module(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Return the import spec of a module in some folders: from the sources read for the load, else from the disk."""
    for finder in sys.meta_path:
        if isinstance(finder, HeldSourceFinder) and (found := finder.find_spec(name, folders)):
            return found
    return PathFinder.find_spec(name, folders)
