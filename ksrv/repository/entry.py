"""The result of reading one model of a repository (`ModelEntry`), and the rule for names of models."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ksrv.model.config import ModelConfig, ModelSource
from ksrv.repository.report import Report

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(slots=True)
class ModelEntry:
    """One model of a repository.

    Attributes:
        name: The name, taken from the folder or file.
        versions: The versions to serve, in rising order; an unversioned model has the version "".
        error: Why no version can be served, or None.
        path: The folder or file of the model.
        report: How each of another server's settings is handled, or None.
    """

    name: str
    versions: dict[str, ModelSource] = field(default_factory=dict)
    error: str | None = None
    path: Path = field(default_factory=Path)
    report: Report | None = None


def unversioned(name: str, path: Path, root: Path, config: ModelConfig, **more: Any) -> ModelEntry:
    """Return the entry of a model without version folders.

    Args:
        root: The folder of its files.
        more: Further fields of the `ModelSource`.
    """
    version = config.own_version
    source = ModelSource(name=name, version=version, folder=root, root=root, config=config, **more)
    return ModelEntry(name, {version: source}, path=path)


def is_model_name(name: str) -> bool:
    """Whether a folder or file of this name can be served as a model."""
    return _MODEL_NAME.fullmatch(name) is not None
