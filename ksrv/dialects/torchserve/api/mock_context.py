"""A context for users' unit tests of their handlers: `ts.torch_handler.unit_tests.test_utils.mock_context`."""

import os
from typing import Any

from ksrv.dialects.torchserve.api.metrics import Metrics
from ksrv.dialects.torchserve.api.model_config import get_yaml_config
from ksrv.handlers.diagnostics.metrics import discard


class MockContext:
    """A context for `initialize` and `handle` without a server.

    Args:
        model_pt_file: The serialized file, or None.
        model_dir: The model's folder. The default is the path in TorchServe's repository.
        model_file: The model's definition, or None.
        gpu_id: The GPU that the context names if the machine has one.
        model_yaml_config_file: A model-config.yaml inside `model_dir`, or None.
    """

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = None,
        gpu_id: str | int | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        model: dict[str, str] = {"modelName": model_name}
        if model_pt_file:
            model["serializedFile"] = model_pt_file
        if model_file:
            model["modelFile"] = model_file
        self.manifest = {"model": model}
        self.system_properties: dict[str, Any] = {"model_dir": model_dir}
        if gpu_id is not None and _has_cuda():
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.model_name = model_name
        self.metrics = Metrics(model_name, discard)
        self.model_yaml_config: dict[str, Any] = {}
        if model_yaml_config_file is not None:
            self.model_yaml_config = get_yaml_config(
                os.path.join(model_dir, model_yaml_config_file)
            )

    def get_request_header(self, idx: int, key: str) -> bool | None:
        """Return whether the mode is "explain" for this name, and None for others."""
        return self.explain if key == "explain" else None


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
