"""A handler's context: its model, its device, its settings, the running batch.

One `Context` belongs to one handler object and lives as long as it does; only `batch` and the
timings change from call to call: what `RunningBatch` holds.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ksrv._native.batch.stages import RunningBatch
from ksrv.handlers.device import choose_device, choose_onnx_device
from ksrv.handlers.metrics import Metrics
from ksrv.handlers.model_imports import HandlerError, ModelImporter, resolve
from ksrv.source import ModelConfig, ModelSource
from ksrv.spec import ModelSpec

if TYPE_CHECKING:
    from ksrv.handlers.batch import Batch
    from ksrv.loaders.loaded import LoadedModel
    from ksrv.request import BatchInputs

log = logging.getLogger("ksrv.handlers")


class Context(RunningBatch):
    """The context of a handler, given to `initialize` and readable in every stage.

    Attributes:
        model_name: The model's name.
        model_version: Its version, or "".
        model_dir: The folder with the version's files.
        model_file: The file that `model:` names, or None.
        config: Every setting of model.yaml.
        spec: The declared inputs and outputs; complete after `initialize`.
        parameters: The `parameters:` of model.yaml.
        labels: Class labels by index, or None.
        instance: The number of this handler among the model's instances.
        threads: CPU threads that this instance may use; 0 for no limit of its own.
        metrics: Reports values of the handler's own to the metrics page.
        loaded: The model that the loader returned, or None.
        stage: The stage that is running.
        timings: Nanoseconds by stage of the batch that is running.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        *,
        instance: int = 0,
        threads: int = 0,
        metrics: Metrics | None = None,
        make_batch: Callable[[BatchInputs], Batch] | None = None,
    ) -> None:
        super().__init__(make_batch)
        self.source = source
        self.config = config
        self.model_name = source.name
        self.model_version = source.version
        self.model_dir = source.folder
        self.model_file = Path(config.model) if config.model else None
        self.spec: ModelSpec = config.spec(source.name, source.version)
        self.parameters = config.parameters
        self.labels = config.labels
        self.instance = instance
        self.threads = threads or config.threads
        self.metrics = metrics or Metrics(source.name, source.version)
        self.loaded: LoadedModel | None = None
        self.modules = ModelImporter(
            source.name, (source.folder, source.root), version=source.version, instance=instance
        )

    @cached_property
    def device(self) -> str:
        """The device's name, such as "cuda:0"; chosen when it is first asked for."""
        choose = choose_onnx_device if self._is_onnx else choose_device
        return choose(self.config.device, self.instance)

    @property
    def _is_onnx(self) -> bool:
        return self.model_file is not None and self.model_file.suffix == ".onnx"

    def apply_torch_settings(self) -> None:
        """Set torch's process-wide settings: threads, and the matmul precision of model.yaml.

        A model that does not use torch leaves it alone: it is not imported for this.
        """
        file, precision = self.model_file, self.config.matmul_precision
        uses_torch = file is not None and file.suffix != ".onnx"
        if not (uses_torch or precision or "torch" in sys.modules):
            return
        try:
            import torch
        except ModuleNotFoundError:
            return  # the loader says which extra is missing

        if precision is not None:
            torch.set_float32_matmul_precision(precision)
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    def load_model(self) -> LoadedModel | None:
        """Load the file that `model:` names, with the class that `class:` names.

        Returns:
            The model, or None where model.yaml names neither.

        Raises:
            ModelLoadError: It cannot be loaded.
        """
        from ksrv.loaders.choice import load_model
        from ksrv.loaders.loaded import LoadRequest, ModelLoadError

        if self.model_file is None and self.config.model_class is None:
            return None
        request = LoadRequest(
            path=self.model_file,
            root=self.source.root,
            device=self.device,
            threads=self.threads,
            model_class=self._model_class(),
            inputs=self.config.inputs,
        )
        try:
            self.loaded = load_model(request)
        except ModelLoadError as error:
            if not self._is_onnx or self.config.device != "auto" or self.device == "cpu":
                raise
            # A GPU whose libraries do not fit this ONNX Runtime shows only now.
            log.warning("%s: on the CPU, because %s", self.model_file, error)
            self.device = "cpu"
            self.loaded = load_model(replace(request, device="cpu"))
        if self.loaded.note:
            log.warning("%s: %s", self.model_file, self.loaded.note)
        return self.loaded

    def _model_class(self) -> Callable[[], Any] | None:
        if self.config.model_class is None:
            return None
        found = resolve(self.config.model_class, self.modules)
        if not callable(found):
            raise HandlerError(f"{self.config.model_class} is a {type(found).__name__}, no class")
        return cast(Callable[[], Any], found)

    @property
    def system_properties(self) -> dict[str, Any]:
        """The facts under the names that TorchServe's handlers know."""
        kind, _, index = self.device.partition(":")
        return {
            "model_dir": str(self.model_dir),
            "gpu_id": int(index or 0) if kind in ("cuda", "xpu") else None,
            "batch_size": self.spec.max_batch_size or 1,
            "server_name": "ksrv",
        }

    def file(self, name: str) -> Path:
        """Return a file of the model by its name in the folder.

        Args:
            name: A relative path; looked for in the version's folder, then in the model's.

        Returns:
            Its path.

        Raises:
            ValueError: There is no such file, or it lies outside the model's folder.
        """
        root = self.source.root.resolve()
        for folder in (self.source.folder, self.source.root):
            path = folder / name
            if path.is_file() and path.resolve().is_relative_to(root):
                return path
        raise ValueError(f"the file {name!r} is not in the model's folder {self.source.root}")
