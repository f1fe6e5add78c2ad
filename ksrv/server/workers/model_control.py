"""Which models a worker loads at its start, and how often it looks for changes: `--model-control`."""

import logging
from collections.abc import Collection, Iterable

from ksrv.errors import quote
from ksrv.server.settings import ServerSettings, SettingsError
from ksrv.server.workers.repository_changes import ChangeReplicator

log = logging.getLogger(__name__)

POLL_SECONDS = 15.0
"""Seconds between two looks for changed models with `--model-control poll`, unless `poll_interval` is set."""


def check_model_control(settings: ServerSettings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        SettingsError: Two settings contradict each other.
    """
    control = settings.model_control
    if settings.watch_seconds > 0 and control in ("none", "explicit"):
        raise SettingsError(
            f"setting 'poll_interval': nothing is polled with --model-control {control}; leave one of the two out"
        )
    if settings.models_memory and control != "lazy":
        raise SettingsError(
            f"setting 'models_memory': with --model-control {control} no model is unloaded to save memory; leave it out, or "
            "set --model-control lazy"
        )
    if settings.load_model and control != "explicit":
        raise SettingsError(
            f"setting 'load_model': with --model-control {control} all models are loaded; leave it out, or set"
            " --model-control explicit"
        )


def poll_seconds(settings: ServerSettings) -> float:
    """Return the seconds between two looks for changed models; 0 for never."""
    if settings.model_control == "poll" and settings.watch_seconds == 0:
        return POLL_SECONDS
    return settings.watch_seconds


def unloaded_at_start(
    settings: ServerSettings, replicator: ChangeReplicator, names: Iterable[str]
) -> Collection[str]:
    """Return the models of the repository that a worker does not load when it starts.

    Args:
        replicator: Knows the models that calls have loaded and unloaded before this worker started.
    """
    if settings.model_control != "explicit" or "*" in settings.load_model:
        return replicator.unloaded
    known = set(names)
    for name in sorted(set(settings.load_model) - known):
        log.error(
            "setting 'load_model': the repository holds no model %s; its models are %s",
            quote(name),
            ", ".join(sorted(known)) or "none",
        )
    return known - (set(settings.load_model) - replicator.unloaded) - replicator.loaded
