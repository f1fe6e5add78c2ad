"""The handler that a log record is from, by the name of the record's logger.

A handler that writes `logging.getLogger(__name__)` has a logger named after its module, and so have
the files beside it. Those names are noted here while the handler is loaded, so that the server's log
can name model, version and instance on any thread, also on a thread that the handler started.
"""

import threading
from typing import Any

Fields = dict[str, Any]

_owners: dict[str, list[Fields]] = {}
_changing = threading.Lock()


def own(module: str, owner: Fields) -> None:
    """Note that a module's loggers, and those below them, are a handler's.

    Args:
        owner: The handler's model, version and instance, as fields of a record.
    """
    with _changing:
        _owners[module] = [*_owners.get(module, []), owner]


def disown(owner: Fields) -> None:
    """Forget a handler that is being closed.

    Args:
        owner: The owner that `own` was given.
    """
    with _changing:
        for module, owners in list(_owners.items()):
            left = [one for one in owners if one is not owner]
            if left:
                _owners[module] = left
            else:
                del _owners[module]


def fields_of(logger: str) -> Fields:
    """Return the fields of a logger's handler, on which all handlers that share the logger agree.

    Returns:
        Model, version and instance; nothing for a logger that is no handler's.
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
