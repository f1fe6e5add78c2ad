"""Decides which requests are traced, by Triton's trace settings for all models and for single models."""

import copy
import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ksrv.observe import tracing

_TRACEPARENT = re.compile(
    r"\s*[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}.*"
)


class TraceSetting(msgspec.Struct):
    """The settings that were set for one model or for all models; None for a setting that was not set.

    Attributes:
        enabled: Whether requests are traced.
        rate: N to trace one of N requests. If a request has a `traceparent`, its caller decides instead.
    """

    enabled: bool | None = None
    rate: int | None = None


class FullSetting(NamedTuple):
    """The complete settings for the requests of one model, or of all; see `TraceSetting`."""

    enabled: bool
    rate: int


_lock = threading.Lock()
_settings: dict[str, TraceSetting] = {}  # by model; "" for all models
_requests: dict[str, Iterator[int]] = {}  # the count of requests by model, for `rate`


def own_setting(model: str) -> TraceSetting:
    """Return a copy of the settings that were set for a model; "" for all models."""
    return copy.copy(_settings.get(model, TraceSetting()))


def set_setting(model: str, value: Any) -> None:
    """Change the settings of a model.

    Args:
        model: The model; "" for all models without special settings.
        value: A `TraceSetting`, or the mapping of its fields.
    """
    setting = msgspec.convert(value, TraceSetting, from_attributes=True)
    with _lock:
        if setting == TraceSetting():
            _settings.pop(model, None)
        else:
            _settings[model] = setting
        _requests.pop(model, None)
    tracing.sample_by(is_traced)


def full_setting(model: str) -> FullSetting:
    """Return the settings of a model; "" for all models without special settings."""
    all_models = _settings.get("", TraceSetting())
    own = _settings.get(model, all_models)
    enabled = all_models.enabled if own.enabled is None else own.enabled
    rate = all_models.rate if own.rate is None else own.rate
    return FullSetting(enabled is not False, 1 if rate is None else rate)


def is_traced(model: str, headers: Mapping[str, str]) -> bool:
    """Return whether to trace the next request of a model. Counts the request if `rate` is above 1."""
    enabled, rate = full_setting(model)
    if not enabled or rate == 1 or _TRACEPARENT.fullmatch(headers.get(tracing.TRACEPARENT, "")):
        return enabled
    with _lock:
        return next(_requests.setdefault(model, itertools.count())) % rate == 0
