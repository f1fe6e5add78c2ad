"""The model of this process, as the functions of the module know it."""

import threading
from dataclasses import dataclass, field

from ksrv.handlers.diagnostics.metrics import Emit
from ksrv.handlers.models import Submit


@dataclass
class RunningModel:
    """The one model of a handler process.

    Attributes:
        name: The model's name.
        emit: Takes the values of its metrics.
        submit: Submits what it calls.
        may_call: Whether it is neither being initialized nor finalized.
    """

    name: str
    emit: Emit
    submit: Submit
    may_call: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_running: list[RunningModel] = []


def enter(model: RunningModel) -> None:
    """Make a model the one of this process.

    Args:
        model: The model.
    """
    _running[:] = [model]


def running_model() -> RunningModel | None:
    """Return the model of this process; None outside of a server."""
    return _running[0] if _running else None
