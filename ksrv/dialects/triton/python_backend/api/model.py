"""The model that this handler process runs, for the functions of `triton_python_backend_utils`."""

from dataclasses import dataclass

from ksrv.handlers.diagnostics.metrics import Emit
from ksrv.handlers.models import Submit


@dataclass
class RunningModel:
    """The one model of a handler process.

    Attributes:
        name: The model's name.
        emit: Takes the records of its metrics.
        submit: Submits its calls to other models.
        may_call: Whether it may call other models: not while it is initialized or finalized.
    """

    name: str
    emit: Emit
    submit: Submit
    may_call: bool = False


_running: list[RunningModel] = []


def enter(model: RunningModel) -> None:
    """Set the model of this process."""
    _running[:] = [model]


def running_model() -> RunningModel | None:
    """Return the model of this process; None outside of a server."""
    return _running[0] if _running else None
