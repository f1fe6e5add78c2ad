"""Readiness of the server as a whole: which of its models must serve, and why they do not."""

from collections.abc import Mapping
from typing import Literal

from ksrv.engine.model_versions import ModelVersions
from ksrv.errors import cut

SHOWN_MODELS = 8
SHOWN_CHARACTERS = 240
"""How many models that are not ready a health route names, and how much of each reason it tells."""


def why_not_ready(
    table: Mapping[str, ModelVersions],
    *,
    ready_when: Literal["all", "any"],
    loaded: bool,
    names: bool,
) -> str:
    """Return which models are not ready and why; "" where the server is ready.

    Args:
        table: All models, by name.
        ready_when: Whether all required models must serve, or one.
        loaded: Whether all of them have been loaded, or have failed.
        names: Whether to name the models, rather than say how many they are.
    """
    required = [(name, model) for name, model in table.items() if _is_required(model)]
    down = [(name, model) for name, model in required if not _serves(model)]
    if loaded and not _misses(down, len(required), ready_when):
        return ""
    if not down:
        return "the models are being loaded"
    if not names:
        return f"models that are not ready: {len(down)}"
    shown = [_shown(name, model) for name, model in down[:SHOWN_MODELS]]
    more = len(down) - len(shown)
    return cut("; ".join([*shown, *([f"and {more} more are not ready"] if more else [])]))


def _is_required(model: ModelVersions) -> bool:
    return model.wanted and model.required and not model.dormant


def _serves(model: ModelVersions) -> bool:
    return model.default is not None and model.default.ready


def _misses(down: list[tuple[str, ModelVersions]], required: int, ready_when: str) -> bool:
    """Whether the server cannot be ready without the models that are down.

    A model whose handler process is being replaced does not count, as long as another model serves:
    an input that ends its handler must not take the whole server away from its clients.
    """
    if len(down) == required:
        return required > 0
    if ready_when == "any":
        return False
    return not all(model.default and model.default.returning for _, model in down)


def _shown(name: str, model: ModelVersions) -> str:
    """Return why a model is not ready, for the version that requests without a version reach."""
    version = model.default
    if version is not None:
        state, reason = version.state, version.why_not_ready
    else:
        found = model.highest_state
        state, reason = (found.state, found.reason) if found else ("UNAVAILABLE", "")
    stands = "not ready" if state == "READY" else state.lower()
    if len(reason) > SHOWN_CHARACTERS:
        reason = reason[:SHOWN_CHARACTERS] + "..."
    return f"the model {name} is {stands}{f': {reason}' if reason else ''}"
