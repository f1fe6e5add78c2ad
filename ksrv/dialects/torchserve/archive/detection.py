"""Recognises a handler written for TorchServe in a folder with a model.yaml, and makes the settings that run it.

A handler file that imports `ts` was written for TorchServe. The runner of archives drives it, with a manifest made from
model.yaml. It runs in a separate process unless model.yaml has `executor:`, because such handlers import their siblings
by bare name and may change the state of the process. The `parameters:` and `pt2:` of model.yaml become
`context.model_yaml_config`.
"""

import ast
import os
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.dialects.torchserve.calls import FORMAT, RUNNER
from ksrv.model.config import ModelConfig
from ksrv.model.fault import Fault


def imports_ts(file: Path) -> bool:
    """Whether a Python file imports TorchServe's package `ts`, at any place.

    A file that cannot be parsed counts as False; the error appears when the file is loaded.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        if any(name == "ts" or name.startswith("ts.") for name in names):
            return True
    return False


def as_torchserve(
    config: ModelConfig, *, folder: Path, root: Path, name: str = "", function: str | None = None
) -> ModelConfig:
    """Return the settings that run a handler as TorchServe would; see `HandlerReader.adopt`.

    Args:
        folder: The folder of the version.
        root: The model's folder.
        name: The model's name, if it is not the name of `root`.
        function: The function of the file that is the handler, "" for a class, or None to keep that of `handler:`.

    Returns:
        The new settings, or `config` unchanged if the handler does not import `ts`.

    Raises:
        Fault: The model serves sequences.
    """
    file, _, named = (config.handler or "").partition(":")
    if not file.endswith(".py") or not imports_ts(Path(file)):
        return config
    if config.sequences is not None:
        raise Fault(("sequences",), "a handler that is written for TorchServe serves no sequences")
    # A manifest names functions only: TorchServe takes the only class of a file.
    if function is not None:
        named = function
    model: dict[str, str] = {
        "modelName": name or root.name,
        "modelVersion": folder.name if folder != root else "1.0",
        "handler": os.path.relpath(file, folder) + (f":{named}" if named else ""),
    }
    if config.model:
        model["serializedFile"] = os.path.relpath(config.model, folder)
    if config.model_class:
        model["modelFile"] = os.path.relpath(config.model_class.partition(":")[0], folder)
    keys: dict[str, Any] = dict(config.parameters)
    if config.pt2 is not None:
        keys["pt2"] = config.pt2
    return replace(
        config,
        handler=f"{file}:{named}" if named else file,
        runner=RUNNER,
        executor=config.executor if "executor" in config.given else "process",
        dialect={FORMAT: {"manifest": {"runtime": "python", "model": model}, "config": keys}},
    )
