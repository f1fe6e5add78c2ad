"""The table of models: which versions serve now, for all threads that read it.

Readers take no lock, because the table is never changed, only replaced. `ModelRegistry` makes the entries.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping

from ksrv.engine.model import ModelVersion
from ksrv.engine.model_versions import ModelState, ModelVersions, index_line
from ksrv.engine.readiness import outage_of
from ksrv.errors import KsrvError, NotFound, NotLoaded, NotReady, did_you_mean, quote

MOST_COMPARED = 32
"""How many models' names are compared to find the nearest name, if a request names an unknown model."""


class ModelTable:
    """The models by name.

    Args:
        changed: Called with a model's name when its entry was replaced, before the change is reported as done.

    Attributes:
        models: The entries as they are now.
        has_begun: Whether the table has all models of the repository, loaded or not.
    """

    def __init__(self, changed: Callable[[str], object]) -> None:
        self.models: Mapping[str, ModelVersions] = {}
        self.has_begun = False
        self.changed = changed
        self._lock = threading.Lock()  # while the table is replaced

    def begin(self, found: Mapping[str, ModelVersions]) -> None:
        """Add the models that the repository has at the start, unless a call has loaded them already."""
        with self._lock:
            self.models = {**found, **self.models}
        self.has_begun = True

    def put(self, name: str, served: ModelVersions | None) -> None:
        """Replace the entry of a model; None removes it."""
        with self._lock:
            models = {**self.models, name: served}
            self.models = {key: entry for key, entry in models.items() if entry is not None}
        self.changed(name)

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Return the version that serves a request.

        Args:
            version: The version, or "" for the highest.

        Raises:
            NotFound: The model or version is unknown.
            NotLoaded: The model is dormant.
            NotReady: The version does not serve now, or the repository was not read yet.
        """
        has_begun = self.has_begun  # read before the table: if it is true, the table has all models
        served = self.models.get(name)
        if served is None:
            raise self.unknown(name, has_begun)
        model = served.versions.get(version) if version else served.default
        if model is not None:
            return model
        state = served.states.get(version) if version else None
        if version and state is None:
            known = ", ".join(quote(v) for v in served.versions if v) or "no version folders"
            raise NotFound(
                f"Request for unknown model: {quote(name)} version {quote(version)} is not found; "
                f"it has {known}"
            )
        if served.dormant and time.monotonic() >= served.retry_at:
            raise NotLoaded(
                f"the model {name} is not loaded; the first request for it loads it", name
            )
        state = state or served.highest_state
        why = f": {state.reason}" if state and state.reason else "."
        stands = state.state.lower() if state else "unavailable"
        raise NotReady(f"the model {name} is not ready, it is {stands}{why}")

    def unknown(self, name: str, has_begun: bool) -> KsrvError:
        """Return the error for a name that is not in the table."""
        if not has_begun:
            return NotReady("the server is starting and has not read the model repository yet")
        known = list(self.models)
        compares = len(known) <= MOST_COMPARED and len(name) <= 64
        meant = did_you_mean(name, known) if compares else ""
        return NotFound(f"Request for unknown model: {quote(name)} is not found{meant}")

    def loaded(self, name: str = "", version: str = "") -> list[ModelVersion]:
        """Return the versions that serve; see `Engine.statistics`."""
        models = self.models
        if name and (version or name not in models):
            return [self.find(name, version)]
        chosen = [models[name]] if name else models.values()
        return [model for served in chosen for model in served.versions.values()]

    def index(self) -> list[ModelState]:
        """Return the state of every version of every model."""
        lines = []
        for _, served in sorted(self.models.items()):
            for version, model in served.versions.items():
                line = index_line(model, served.states.get(version))
                if model.ready and (outage := outage_of(model, self.find)) is not None:
                    line = dataclasses.replace(line, state="UNAVAILABLE", reason=outage.reason)
                lines.append(line)
            lines += [
                state for version, state in served.states.items() if version not in served.versions
            ]
        return lines
