"""A handler's context: its model, its device, its settings, the running batch.

`Context` is the part that handlers use. `ksrv.handlers.handler_context` has the implementation, which loads the model
and runs batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksrv.handlers.diagnostics.metrics import Metrics
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.spec import ModelSpec

if TYPE_CHECKING:
    from ksrv.handlers.batch import Batch
    from ksrv.handlers.models import Models
    from ksrv.loaders.loaded import LoadedModel


class Context(ABC):
    """The context of a handler, given to `initialize` and readable in every stage.

    One context belongs to one handler object and lives as long as the handler does.

    Args:
        source: The version on disk.
        config: Its settings.
        instance: The number of this handler among the model's instances.
        threads: CPU threads that this instance may use; 0 for the threads of the settings.
        metrics: Reports the handler's values to the metrics page.

    Attributes:
        model_name: The model's name.
        model_version: Its version, or "".
        model_dir: The folder with the version's files.
        model_file: The file that `model:` names, or None.
        spec: The declared inputs and outputs; complete after `initialize`.
        parameters: The `parameters:` of the settings.
        labels: Class labels by index, or None.
        instance: The number of this handler among the model's instances.
        threads: CPU threads that this instance may use; 0 for no limit.
        metrics: Reports the handler's values to the metrics page.
        config: Every setting of the model.
        loaded: The model that the loader returned, or None.
        stage: The stage that is running.
        timings: Nanoseconds by stage of the batch that is running.
    """

    stage: str
    timings: dict[str, int]

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        *,
        instance: int = 0,
        threads: int = 0,
        metrics: Metrics | None = None,
    ) -> None:
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
        self.config = config
        self.loaded: LoadedModel | None = None
        self._folders = (source.folder, source.root)

    @property
    @abstractmethod
    def batch(self) -> Batch:
        """The batch that is running. Not available in `initialize`."""

    @property
    @abstractmethod
    def models(self) -> Models:
        """The other models of the server: `models["resnet"].infer({"image": array})`."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The name of the device, such as "cuda:0". It is chosen on first use."""

    @abstractmethod
    def load_model(self) -> LoadedModel | None:
        """Load the file that `model:` names, with the class that `class:` names, unless it is loaded already.

        Returns:
            The model, the same object for each call; None if the settings name neither.

        Raises:
            ModelLoadError: The model cannot be loaded.
        """

    @property
    def system_properties(self) -> dict[str, Any]:
        """The model's folder, device and batch size, under the names that TorchServe's handlers read."""
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
            ValueError: The file does not exist, or is outside of the model's folder.
        """
        _, root = self._folders
        for folder in self._folders:
            path = folder / name
            if path.is_file() and path.resolve().is_relative_to(root.resolve()):
                return path
        raise ValueError(f"the file {name!r} is not in the model's folder {root}")
