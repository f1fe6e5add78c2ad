"""The calls that list, load and unload models, for both front ends."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ksrv.protocol.load_parameters import check_parameters, failed_load_texts, read_config

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


def index(engine: "Engine", *, ready_only: bool) -> list[dict[str, str]]:
    """Return every model and version with its state."""
    return [
        {"name": one.name, "state": one.state, "reason": one.reason}
        | ({"version": one.version} if one.version else {})
        for one in engine.index(ready_only=ready_only)
    ]


def load(engine: "Engine", name: str, parameters: Mapping[str, Any]) -> None:
    """Load, or load again, a model of the repository; return when it is ready.

    Raises:
        KsrvError: A parameter is wrong, or the model cannot be loaded.
    """
    with failed_load_texts(name):
        engine.load(name, read_config(parameters))


def unload(engine: "Engine", name: str, parameters: Mapping[str, Any]) -> None:
    """Unload a model.

    Raises:
        KsrvError: A parameter is wrong, or the model is unknown.
    """
    check_parameters(parameters)
    engine.unload(name)
