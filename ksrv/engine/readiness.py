"""Decides whether a version is ready, together with the models that it calls, and whether the server is ready."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ksrv.engine.model import ModelVersion
from ksrv.engine.model_versions import ModelVersions
from ksrv.errors import NotFound, NotLoaded, NotReady, cut

SHOWN_MODELS = 8
SHOWN_CHARACTERS = 240
"""How many unready models a health route names, and how many characters of each reason."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a version does not serve.

    Attributes:
        returning: Whether the version will serve again by itself, because its process is being replaced.
    """

    reason: str
    returning: bool


def outage_of(
    version: ModelVersion,
    find: Callable[[str, str], ModelVersion],
    callers: tuple[ModelVersion, ...] = (),
) -> Outage | None:
    """Return why a version, or a model that it calls, does not serve; None if all of them do.

    Args:
        find: Returns the version that serves requests to a model; see `ModelTable.find`.
        callers: The versions that call this version. They are not looked at again, because models may name each other
            under `calls:`.
    """
    if reason := version.why_not_ready:
        return Outage(reason, version.returning)
    for name, number in version.config.needs:
        try:
            called = find(name, number)
            known = called in callers or called is version
            found = None if known else outage_of(called, find, (*callers, version))
        except NotLoaded:
            continue  # the model is dormant: the call loads it
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
    """Return which models are not ready and why; "" if the server is ready.

    Args:
        table: All models, by name.
        find: See `outage_of`.
        ready_when: Whether all required models must serve, or any of them.
        loaded: Whether the load of each model has ended, with or without success.
        names: Whether the text names the models; otherwise it has their number only.
    """
    required = [(name, model) for name, model in table.items() if _is_required(model)]
    down = [
        (name, model, outage)
        for name, model in required
        if (outage := _outage(model, find)) is not None
    ]
    outages = [outage for _, _, outage in down]
    if loaded and not _is_unready(outages, len(required), ready_when):
        return ""
    if not down:
        return "the models are being loaded"
    if not names:
        return f"models that are not ready: {len(down)}"
    shown = [_shown(*outage) for outage in down[:SHOWN_MODELS]]
    more = len(down) - len(shown)
    return cut("; ".join([*shown, *([f"and {more} more are not ready"] if more else [])]))


def _is_required(model: ModelVersions) -> bool:
    return model.wanted and model.required and not model.dormant


def _outage(model: ModelVersions, find: Callable[[str, str], ModelVersion]) -> Outage | None:
    """Return why a model does not serve the requests that name no version; None if it does.

    A model without a default version has no ready version. The reason is then that of its highest version.
    """
    if model.default is not None:
        return outage_of(model.default, find)
    found = model.highest_state
    return Outage(found.reason if found else "", returning=False)


def _is_unready(outages: Sequence[Outage], required: int, ready_when: str) -> bool:
    """Tell whether the server is not ready, because required models are down.

    A model whose handler process is being replaced does not count as down, as long as another model serves. Otherwise a
    request that ends a handler process would make the whole server unready.

    Args:
        outages: One entry for each required model that is down.
        required: The number of required models.
    """
    if len(outages) == required:
        return required > 0
    if ready_when == "any":
        return False
    return not all(outage.returning for outage in outages)


def _shown(name: str, model: ModelVersions, outage: Outage) -> str:
    """Return a text with the state of a model and the reason."""
    shown, reason = model.default or model.highest_state, outage.reason
    state = shown.state if shown else "UNAVAILABLE"
    stands = "not ready" if state == "READY" else state.lower()
    if len(reason) > SHOWN_CHARACTERS:
        reason = reason[:SHOWN_CHARACTERS] + "..."
    return f"the model {name} is {stands}{f': {reason}' if reason else ''}"
