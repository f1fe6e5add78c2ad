"""Versions as TensorFlow Serving's clients name them: by a whole number, or by a label that the settings give it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ksrv.errors import NotFound, did_you_mean, quote

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

_KEY = "version_labels"
"""The key of `ModelConfig.dialect` with the versions by their labels."""


def labelled(labels: Mapping[str, int]) -> dict[str, Any]:
    """Return the labels of a model's versions as a value of `ModelConfig.dialect`."""
    return {_KEY: dict(labels)} if labels else {}


def number_of(version: str) -> int:
    """Return the number of a version: 1 without a version, and for "1.0"."""
    first = version.partition(".")[0] or "1"
    return int(first) if first.isdecimal() else 0


def find_version(engine: "Engine", name: str, version: str = "", label: str = "") -> str:
    """Return the version of a model that a client names, as the engine knows it.

    Args:
        version: The version; "" and "0" are the default version.
        label: The label, instead of a version.

    Raises:
        NotFound: The model has no such label.
    """
    if label:
        models = (model for model in engine.loaded() if model.spec.name == name)
        found: dict[str, int] = next((model.config.dialect.get(_KEY, {}) for model in models), {})
        if label not in found:
            hint = did_you_mean(label, found)
            known = f"its labels are {', '.join(found)}" if found else "it has none"
            raise NotFound(f"the model {quote(name)} has no label {quote(label)}{hint}; {known}")
        version = str(found[label])
    if not version:
        return ""
    versions = {state.version for state in engine.index() if state.name == name}
    same = [one for one in versions if str(number_of(one)) == version and version not in versions]
    return next(iter(same), "" if version == "0" and version not in versions else version)
