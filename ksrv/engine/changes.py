"""One change of what the engine serves: a model is loaded, brought up to date, unloaded or taken away."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from ksrv.repository.entry import ModelEntry

ChangeKind: TypeAlias = Literal["load", "update", "unload", "remove"]


class RepositoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one model. Its files were read once, so that all workers load the same.

    Attributes:
        kind: "load" loads the model, also where it serves already. "update" loads the versions that differ from
            the serving versions, unless the model was unloaded on purpose. "remove" is for models without files.
        entry: The model to load.
        config: The text of the config.pbtxt that replaced the model's file when `entry` was read.
    """

    kind: ChangeKind
    name: str
    entry: ModelEntry | None = None
    config: str | None = None


Look: TypeAlias = Callable[[], Sequence[RepositoryChange]]
"""Looks at the disk and returns the changes to make; it may be called again, where others have made changes meanwhile."""
