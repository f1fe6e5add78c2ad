"""`RepositoryChange`: one model is loaded, brought up to date, unloaded or removed."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from ksrv.repository.entry import ModelEntry

ChangeKind: TypeAlias = Literal["load", "update", "unload", "remove"]


class RepositoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one model. One worker reads the files, so that all workers load the same.

    Attributes:
        kind: "load" loads the model, even if it serves already. "update" loads the versions that differ from the
            serving versions, unless a call has unloaded the model. "unload" is for calls, and "remove" for models whose
            files are gone.
        entry: The model to load, or None.
        config: The text of a config.pbtxt that `entry` was read with instead of the model's file.
    """

    kind: ChangeKind
    name: str
    entry: ModelEntry | None = None
    config: str | None = None


Look: TypeAlias = Callable[[], Sequence[RepositoryChange]]
"""Looks at the disk and returns the changes to make. Called again if other workers have made changes meanwhile."""
