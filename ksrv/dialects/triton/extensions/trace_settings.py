"""Decides which requests are traced, by Triton's trace settings for all models and for single models."""

import copy
from typing import Any

import msgspec

from ksrv.observe import tracing


class TraceSetting(msgspec.Struct):
    """The settings that were set for one model or for all models; None for a setting that was not set.

    Attributes:
        enabled: Whether requests are traced.
        rate: N to trace one of N requests. If a request has a `traceparent`, its caller decides instead.
    """

    enabled: bool | None = None
    rate: int | None = None


_settings: dict[str, TraceSetting] = {}  # by model; "" for all models


def own_setting(model: str) -> TraceSetting:
    """Return a copy of the settings that were set for a model; "" for all models."""
    return copy.copy(_settings.get(model, TraceSetting()))


def set_setting(model: str, value: Any) -> None:
    """Change the settings of a model.

    Args:
        model: The model; "" for all models without special settings.
        value: A `TraceSetting`, or the mapping of its fields.
    """
    _settings[model] = msgspec.convert(value, TraceSetting, from_attributes=True)
    tracing.rate_by(_rate_of)


def full_setting(model: str) -> TraceSetting:
    """Return the complete settings of a model; "" for all models without special settings."""
    all_models = _settings.get("", TraceSetting())
    own = _settings.get(model, all_models)
    enabled = all_models.enabled if own.enabled is None else own.enabled
    rate = all_models.rate if own.rate is None else own.rate
    return TraceSetting(enabled is not False, 1 if rate is None else rate)


def _rate_of(model: str) -> int:
    """Return N to trace one of N requests of a model; 0 to trace none."""
    found = full_setting(model)
    return found.rate or 1 if found.enabled else 0
