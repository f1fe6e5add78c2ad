"""Finds the handler that wrote a log record, by the name of the record's logger.

A handler that calls `logging.getLogger(__name__)` has a logger named after its module, and so have the other files of
its folder. While the handler is loaded, `note_owner` stores the names of these modules. So the server's log can name
model, version and instance of a record from any thread, also from a thread that the handler started.
"""

import threading
from typing import Any

Fields = dict[str, Any]

# The lists are replaced and never changed, because `fields_of` reads them without the lock.
_owners: dict[str, list[Fields]] = {}
_changing = threading.Lock()


def note_owner(module: str, owner: Fields) -> None:
    """Note that the loggers of a module, and of its submodules, belong to a handler.

    Args:
        owner: The handler's model, version and instance, as fields of a record.
    """
    with _changing:
        _owners[module] = [*_owners.get(module, []), owner]


def forget_owner(owner: Fields) -> None:
    """Forget a handler that is being closed.

    Args:
        owner: The same object that `note_owner` got.
    """
    with _changing:
        for module, owners in list(_owners.items()):
            left = [other for other in owners if other is not owner]
            if left:
                _owners[module] = left
            else:
                del _owners[module]


def fields_of(logger: str) -> Fields:
    """Return the fields of the handler that has a logger. Several handlers may share it, for example as instances.

    Returns:
        Model, version and instance, without fields in which the handlers differ; empty if no handler has the logger.
    """
    while logger:
        owners = _owners.get(logger)
        if owners:
            first, *others = owners
            return {
                key: value
                for key, value in first.items()
                if all(other[key] == value for other in others)
            }
        logger = logger.rpartition(".")[0]
    return {}


def label_of(fields: Fields) -> str:
    """Return the fields in a few characters: "cats/2#0".

    Args:
        fields: Model, version and instance, or some of them.
    """
    version, instance = fields.get("version"), fields.get("instance")
    shown = str(fields.get("model", ""))
    shown += f"/{version}" if version else ""
    return shown if instance is None else f"{shown}#{instance}"
