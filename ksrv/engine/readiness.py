"""Readiness of a version with the models that it calls, and of the server as a whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ksrv.engine.model import ModelVersion
from ksrv.engine.model_versions import ModelVersions
from ksrv.errors import NotFound, NotLoaded, NotReady, cut

SHOWN_MODELS = 8
SHOWN_CHARACTERS = 240
"""How many models that are not ready a health route names, and how much of each reason it tells."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a version does not serve.

    Attributes:
        returning: Whether it will serve again by itself.
    """

    reason: str
    returning: bool


def outage_of(version: ModelVersion, find: Callable[[str, str], ModelVersion]) -> Outage | None:
    """Return why a version, or a model that it calls, does not serve; None if all of them do.

    Args:
        find: Returns the version that serves requests to a model; see `ModelRegistry.find`.
    """
    if reason := version.why_not_ready:
        return Outage(reason, version.returning)
    for name, number in version.config.needs:
        try:
            found = outage_of(find(name, number), find)
        except NotLoaded:
            continue  # the call loads it
        except (NotFound, NotReady) as error:
            found = Outage(error.message, returning=False)
        if found is not None:
            return Outage(f"it calls the model {name}: {found.reason}", found.returning)
    return None


def why_not_ready(
    table: Mapping[str, ModelVersions],
    find: Callable[[str, str], ModelVersion],
    *,
    ready_when: Literal["all", "any"],
    loaded: bool,
    names: bool,
) -> str:
    """Return which models are not ready and why; "" where the server is ready.

    Args:
        table: All models, by name.
        find: See `outage_of`.
        ready_when: Whether all required models must serve, or one.
        loaded: Whether all of them have been loaded, or have failed.
        names: Whether to name the models, rather than say how many they are.
    """
    required = [(name, model) for name, model in table.items() if _is_required(model)]
    down = [
        (name, model, outage)
        for name, model in required
        if (outage := _outage(model, find)) is not None
    ]
    outages = [outage for _, _, outage in down]
    if loaded and not _misses(outages, len(required), ready_when):
        return ""
    if not down:
        return "the models are being loaded"
    if not names:
        return f"models that are not ready: {len(down)}"
    shown = [_shown(*one) for one in down[:SHOWN_MODELS]]
    more = len(down) - len(shown)
    return cut("; ".join([*shown, *([f"and {more} more are not ready"] if more else [])]))


def _is_required(model: ModelVersions) -> bool:
    return model.wanted and model.required and not model.dormant


def _outage(model: ModelVersions, find: Callable[[str, str], ModelVersion]) -> Outage | None:
    """Return why a model does not serve the requests that name no version; None if it does."""
    if model.default is not None:
        return outage_of(model.default, find)
    found = model.highest_state
    return Outage(found.reason if found else "", returning=False)


def _misses(outages: Sequence[Outage], required: int, ready_when: str) -> bool:
    """Whether the server cannot be ready without the models that are down.

    A model whose handler process is being replaced does not count, as long as another model serves:
    an input that ends its handler must not take the whole server away from its clients.
    """
    if len(outages) == required:
        return required > 0
    if ready_when == "any":
        return False
    return not all(one.returning for one in outages)


def _shown(name: str, model: ModelVersions, outage: Outage) -> str:
    """Return which state a model is in, and why."""
    shown, reason = model.default or model.highest_state, outage.reason
    state = shown.state if shown else "UNAVAILABLE"
    stands = "not ready" if state == "READY" else state.lower()
    if len(reason) > SHOWN_CHARACTERS:
        reason = reason[:SHOWN_CHARACTERS] + "..."
    return f"the model {name} is {stands}{f': {reason}' if reason else ''}"
