"""The versions of one model as the registry keeps them, serving or not, and their lines in the repository index.

The objects are immutable: the registry replaces the `ModelVersions` of a model with each change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ksrv.engine.instances.host import State
from ksrv.engine.lifetime_counters import LifetimeCounters
from ksrv.engine.model import ModelVersion
from ksrv.repository.entry import ModelEntry
from ksrv.repository.fingerprint import Fingerprint
from ksrv.shadow import is_shadow


@dataclass(frozen=True, slots=True)
class ModelState:
    """One line of the repository's index.

    Attributes:
        state: "LOADING", "READY", "UNLOADING" or "UNAVAILABLE".
        reason: Why the version is not ready, or "".
    """

    name: str
    version: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """The versions of one model.

    Attributes:
        versions: The versions that serve, in rising order.
        states: The states of the other versions, and of failed loads of newer files, by version.
        wanted: Whether the model is configured, and was not unloaded on purpose.
        required: Whether the server is ready only with the model: it was in the repository when the server started, a
            call has loaded it, or it has served. A model that polling finds is not required, so that a new model that
            cannot be loaded does not make a ready server unready.
        fingerprints: The fingerprint of each version on disk at its last load, even if that failed.
        entry: The repository entry of the last load; for a dormant model, the entry that its first request loads.
        dormant: Whether the first request that names the model loads it.
        retry_at: The time (`time.monotonic`) before which a dormant model whose load failed is not tried again.
        counters: The counts of versions of a dormant model, from earlier loads.
    """

    versions: dict[str, ModelVersion] = field(default_factory=dict)
    states: dict[str, ModelState] = field(default_factory=dict)
    wanted: bool = True
    required: bool = True
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    entry: ModelEntry | None = None
    dormant: bool = False
    retry_at: float = 0.0
    counters: Mapping[str, LifetimeCounters] = field(default_factory=dict)

    @property
    def default(self) -> ModelVersion | None:
        """The version that serves requests that name no version: the last that is ready, or else the last.

        It is never the version that `shadow` names.
        """
        models = [model for model in self.versions.values() if not is_shadow(model.source)]
        ready = [model for model in models if model.state == "READY"]
        return next(reversed(ready or models), None)

    @property
    def highest_state(self) -> ModelState | None:
        """The state of the highest version in `states`, or None."""
        return next(reversed(self.states.values()), None)


def loading_versions(name: str, versions: Iterable[str]) -> ModelVersions:
    """Return a model whose first load has not ended."""
    return ModelVersions(states={v: ModelState(name, v, "LOADING") for v in versions})


def dormant_versions(
    entry: ModelEntry,
    fingerprints: Mapping[str, Fingerprint],
    counters: Mapping[str, LifetimeCounters] | None = None,
    *,
    failure: str = "",
    retry_at: float = 0.0,
) -> ModelVersions:
    """Return a dormant model, which the next request loads.

    Args:
        failure: Why the last load failed; "" if it did not.
    """
    reason = failure or "not loaded"
    versions = entry.versions or ("",)
    states = {v: ModelState(entry.name, v, "UNAVAILABLE", reason) for v in versions}
    return ModelVersions(
        states=states,
        fingerprints=fingerprints,
        entry=entry,
        dormant=True,
        retry_at=retry_at,
        counters=counters or {},
    )


def unloaded_versions(name: str, versions: Iterable[str]) -> ModelVersions:
    """Return a model that was unloaded on purpose."""
    states = {version: ModelState(name, version, "UNAVAILABLE", "unloaded") for version in versions}
    return ModelVersions(states=states, wanted=False)


def index_line(model: ModelVersion, failed: ModelState | None) -> ModelState:
    """Return the index line of a version that serves.

    Args:
        failed: The state of a later load of the version that failed, or None.
    """
    reason = model.reason or model.degraded or model.warm_up_error
    if failed is not None and not reason:
        reason = f"the last load failed, and the version before it serves: {failed.reason}"
    return ModelState(model.spec.name, model.spec.version, model.state, reason)
