"""One model of a repository, and the names that a model may have."""

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
        name: Its name, taken from its folder or file.
        versions: The versions to serve, in rising order; "" for an unversioned model.
        error: Why none of it can be served, or None.
        path: The folder or file that it comes from.
        available: Every version on disk, also the versions that the policy leaves out.
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
