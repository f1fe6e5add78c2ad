"""One change of what the engine serves: a model is loaded, brought up to date, unloaded or taken away."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from ksrv.repository.entry import ModelEntry

ChangeKind: TypeAlias = Literal["load", "update", "unload", "remove"]


class RepositoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one model. What is to be loaded was read once, so that all who make the change load the same.

    Attributes:
        kind: "load" loads the model, also where it serves already. "update" loads the versions that differ from
            those that serve, unless the model was unloaded on purpose. "remove" is for models without files.
        name: The model's name.
        entry: What is to be loaded.
        config: The text of a config.pbtxt that `entry` was read by, in place of the model's own.
    """

    kind: ChangeKind
    name: str
    entry: ModelEntry | None = None
    config: str | None = None


Look: TypeAlias = Callable[[], Sequence[RepositoryChange]]
"""Looks at the disk and returns the changes to make; it may be called again, where others have made changes meanwhile."""
