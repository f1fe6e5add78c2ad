"""The result of reading one model of a repository (`ModelEntry`), and the rule for names of models."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from ksrv.model.config import ModelSource
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
        available: Every version on disk, also the versions that the version policy leaves out.
        report: How each of another server's settings is handled, or None.
    """

    name: str
    versions: dict[str, ModelSource] = field(default_factory=dict)
    error: str | None = None
    path: Path = field(default_factory=Path)
    available: tuple[str, ...] = ()
    report: Report | None = None


def is_model_name(name: str) -> bool:
    """Whether a folder or file of this name can be served as a model."""
    return _MODEL_NAME.fullmatch(name) is not None
