"""Finds, describes, lists, registers, scales and unregisters archives, as TorchServe's management API does.

The REST routes (`management.py`) and the gRPC services (`grpc_calls.py`) both call `Archives`. The parameter `url`
names an archive of the model store, which is the served model repository. A change applies to every worker of the
server, and is lost when the server ends, because nothing is written to the store. Every change loads the model anew;
meanwhile the old versions serve.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replace_struct

from ksrv.dialects.torchserve.archive.model_config import DEFAULT_BATCH_DELAY_MS, with_batches
from ksrv.dialects.torchserve.calls import FORMAT, ROUTES, TorchServeCall
from ksrv.dialects.torchserve.routes import errors
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.describe import description
from ksrv.dialects.torchserve.routes.errors import TorchServeError
from ksrv.dialects.torchserve.runner import rows
from ksrv.errors import HandlerFailed, InvalidRequest, NotFound, quote
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.model.spec import LARGEST_SIZE, ModelSpec
from ksrv.repository.entry import ModelEntry
from ksrv.request import InferRequest
from ksrv.server.call import Find

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

PLATFORM = "torchserve"
"""The platform of models that TorchServe's runner drives."""
MOST_LISTED = 100
"""Models on a page of the list."""
MOST_WORKERS = 1024
LONGEST_S = LARGEST_SIZE // 1000  # the settings are in milliseconds
MOST_ROWS = 1_000_000
LONGEST_DELAY_MS = 3_600_000
REFUSED = ("handler", "runtime", "s3_sse_kms")
"""Parameters of TorchServe's register call that ksrv refuses."""


class Archives:
    """The archives of an engine.

    `given` are the parameters of a call: texts by TorchServe's names, as in the query of a URL.
    """

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    # ---- reading ----------------------------------------------------------------------------

    def find(self, name: str, version: str, find: Find) -> "ModelVersion":
        """Return the archive's version that takes a request.

        Args:
            find: Returns a model; see `ksrv.server.call.InferCall.read`.

        Raises:
            TorchServeError: The archive is unknown.
            KsrvError: The archive does not serve now.
        """
        try:
            model = find(name, version)
        except NotFound:
            if not version or not any(state.name == name for state in self.engine.index()):
                raise errors.model_not_found(name) from None
            raise errors.version_not_found(name, version) from None
        if not takes_torchserve_requests(model.spec):
            archive = model.spec.platform == PLATFORM
            why = "declares image inputs" if archive else "is not a TorchServe archive"
            raise errors.bad_request(f"{name} {why}: POST /v2/models/{name}/infer serves it")
        return model

    def described(self, name: str, version: str, *, customized: bool) -> list[dict[str, Any]]:
        """Return the descriptions of the versions that `version` names: one, all for "all", the default for "".

        Args:
            customized: Whether to add the description that the handler gives of the model.
        """
        every = version == "all"
        models = [self.find(name, "" if every else version, self.engine.find)]
        if every:
            models = [model for model in self.engine.loaded() if model.spec.name == name]
        listed = []
        for model in models:
            document = description(model)
            if customized:
                document["customizedMetadata"] = self._describe(model)
            listed.append(document)
        return listed

    def _describe(self, model: "ModelVersion") -> Any:
        """Ask the handler for its description of the model."""
        spec = model.spec
        request = InferRequest(
            spec.name,
            spec.version,
            str(uuid.uuid4()),
            dialect=ROUTES,
            facts=TorchServeCall(describe=True),
            target=model,
        )
        exchange = answers.Exchange(self.engine, lambda find: request)
        while exchange.first() is not None:
            pass  # ignore chunks: only the final answer is the description
        return rows.described(answers.item_bytes(exchange.response()))

    def listed(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the list of the archives that serve."""
        names = sorted(self._archive_by_model().items())
        first = _whole(given, "next_page_token", 0)
        limit = min(_whole(given, "limit", MOST_LISTED) or MOST_LISTED, MOST_LISTED)
        page = names[first : first + limit]
        document: dict[str, Any] = {}
        if first + limit < len(names):
            document["nextPageToken"] = str(first + limit)
        document["models"] = [{"modelName": name, "modelUrl": url} for name, url in page]
        return document

    def _served(self, name: str) -> "dict[str, ModelVersion]":
        """Return the versions of a model that serve, the default version last, as `_load` expects them.

        Raises:
            TorchServeError: No version serves.
        """
        loaded = self.engine.loaded()
        found = {model.spec.version: model for model in loaded if model.spec.name == name}
        if not found:
            raise errors.model_not_found(name)
        with _torchserve_not_found():
            default = self.engine.find(name)
        found[default.spec.version] = found.pop(default.spec.version, default)
        return found

    def _archive_by_model(self) -> dict[str, str]:
        """Return the archive's file name for each model that serves."""
        return {
            model.spec.name: str(
                model.config.dialect.get(FORMAT, {}).get("archive", model.spec.name)
            )
            for model in self.engine.loaded()
        }

    # ---- changes ----------------------------------------------------------------------------

    def _load(self, name: str, configs: Mapping[str, ModelConfig]) -> None:
        """Load the versions of a model that `configs` has, and only these. The last becomes the default version.

        Args:
            configs: The settings by version. Only settings that calls can change are taken from them.
        """

        def adjust(entry: ModelEntry) -> ModelEntry:
            versions = {
                version: _with_call_settings(entry.versions[version], config)
                for version, config in configs.items()
                if version in entry.versions
            }
            return replace(entry, versions=versions)

        with _torchserve_not_found():
            self.engine.load(name, adjust=adjust)

    def register(self, given: Mapping[str, str]) -> str:
        """Load an archive of the store; return TorchServe's message about it.

        Raises:
            TorchServeError: The archive is missing, it is registered already, or it cannot be loaded.
        """
        url = given.get("url", "")
        if not url:
            raise errors.bad_request("Parameter url is required.")
        entry, version, source = self._archive(url)
        name = given.get("model_name") or entry.name
        if name != entry.name:
            raise errors.bad_request(
                f"model_name is {quote(name)}, and the archive's manifest names the model {entry.name!r}"
            )
        for key in REFUSED:
            if given.get(key):
                raise errors.bad_request(
                    f"{key} comes from the archive's manifest, and cannot be given with a call; leave it out, or make the "
                    f"archive again"
                )
        loaded = self.engine.loaded()
        known = [model.spec.version for model in loaded if model.spec.name == name]
        if version in known:
            text = f"Model version {version} is already registered for model {name}"
            raise TorchServeError(409, "ConflictStatusException", text)
        if source.config is None:
            raise errors.bad_request(
                source.error or f"{quote(url)} has no settings; expected a TorchServe archive"
            )
        config = _registered(source.config, given)
        others = self._configs(self._served(name)) if known else {}
        try:
            self._load(name, {version: config} | others)  # the default version stays the last
        except HandlerFailed:
            text = f"Failed to start workers for model {name} version: {version}"
            raise TorchServeError(500, errors.INTERNAL, text) from None
        return (
            f'Model "{name}" Version: {version} registered with {config.instances} initial workers'
        )

    def _archive(self, url: str) -> tuple[ModelEntry, str, ModelSource]:
        """Return the entry, the version and the source of the store's archive that `url` names."""
        shown = url[: errors.LONGEST_QUOTED]
        if "://" in url:
            raise errors.not_found(f"Given URL {shown} does not match any allowed URL(s)")
        if ".." in url.split("/") or url.startswith("/"):
            raise errors.not_found(f"Relative path is not allowed in url: {shown}")
        for entry in self.engine.repository.look().values():
            for version, source in entry.versions.items():
                archive = source.config.dialect.get(FORMAT, {}) if source.config else {}
                if url in (
                    archive.get("archive"),
                    f"{entry.name}.mar",
                    entry.name,
                    entry.path.name,
                ):
                    return entry, version, source
            if entry.error and url in (entry.path.name, f"{entry.name}.mar"):
                raise errors.bad_request(entry.error)
        raise errors.not_found(f"Model not found at: {shown}")

    def scale(self, name: str, version: str, given: Mapping[str, str]) -> str:
        """Load a version with another number of workers; return TorchServe's message. "" is the default version."""
        workers = _workers(given, "min_worker", 1)
        most = _workers(given, "max_worker", workers)
        if most < workers:
            raise InvalidRequest(
                f"max_worker is {most}, below min_worker, which is {workers}; raise it, or lower min_worker"
            )
        served = self._served(name)
        wanted = version or next(reversed(served))
        if wanted not in served:
            raise errors.version_not_found(name, version)
        configs = self._configs(served)
        if configs[wanted].instances != workers:
            self._load(name, configs | {wanted: replace_struct(configs[wanted], instances=workers)})
        shown = f"{name}, version: {version}" if version else name
        return f"Workers scaled to {workers} for model: {shown}"

    def set_default(self, name: str, version: str) -> str:
        """Let a version serve the requests that name no version; return TorchServe's message."""
        served = self._served(name)
        if version not in served:
            raise errors.version_not_found(name, version)
        order = [*(other for other in served if other != version), version]
        self._load(name, {each: served[each].config for each in order})
        return f'Default version successfully updated for model "{name}" to "{version}"'

    def unregister(self, name: str, version: str) -> str:
        """Unload a model, or a version that is not the default version; return TorchServe's message."""
        served = self._served(name)
        default = next(reversed(served))
        if not version or (version == default and len(served) == 1):
            with _torchserve_not_found():
                self.engine.unload(name)
        elif version not in served:
            raise errors.version_not_found(name, version)
        elif version == default:
            text = f"Cannot remove default version for model {name}"
            raise TorchServeError(403, "InvalidModelVersionException", text)
        else:
            configs = self._configs(served)
            del configs[version]
            self._load(name, configs)
        return f'Model "{name}" unregistered'

    def _configs(self, served: "Mapping[str, ModelVersion]") -> dict[str, ModelConfig]:
        """Return the settings of versions, with the changes of earlier calls."""
        return {version: model.config for version, model in served.items()}


def takes_torchserve_requests(spec: ModelSpec) -> bool:
    """Whether a model takes requests of TorchServe's routes: an archive that declares no image inputs."""
    return spec.platform == PLATFORM and all(entry.image is None for entry in spec.inputs)


@contextmanager
def _torchserve_not_found() -> Iterator[None]:
    """Turn NotFound into TorchServe's error for an unknown model."""
    try:
        yield
    except NotFound as error:
        raise errors.not_found(error.message) from None


def _with_call_settings(source: ModelSource, given: ModelConfig) -> ModelSource:
    """Return a version of the store with the settings of `given` that calls can change.

    All other settings are the archive's, whose file may have changed since the last load.
    """
    if source.config is None:
        return source
    stored, size = source.config, given.dialect[FORMAT]["batch_size"]
    config = replace_struct(
        stored,
        instances=given.instances,
        run_timeout_ms=given.run_timeout_ms,
        start_timeout_s=given.start_timeout_s,
        batching=given.batching,
        dialect={**stored.dialect, FORMAT: {**stored.dialect[FORMAT], "batch_size": size}},
    )
    return replace_struct(source, config=config)


def _registered(config: ModelConfig, given: Mapping[str, str]) -> ModelConfig:
    """Return an archive's settings with the parameters of a register call."""
    # TorchServe registers a model with 0 workers, which then serves nothing. Here it has at least 1.
    changed: dict[str, Any] = {
        "instances": max(1, _workers(given, "initial_workers", config.instances, least=0))
    }
    if given.get("response_timeout"):
        changed["run_timeout_ms"] = _whole(given, "response_timeout", 0, LONGEST_S) * 1000
    if given.get("startup_timeout"):
        changed["start_timeout_s"] = float(_whole(given, "startup_timeout", 1, LONGEST_S))
    size = _whole(given, "batch_size", 1, MOST_ROWS)
    delay_ms = _whole(given, "max_batch_delay", DEFAULT_BATCH_DELAY_MS, LONGEST_DELAY_MS)
    for key, value in (("batch_size", size), ("startup_timeout", changed.get("start_timeout_s"))):
        if value == 0:
            raise errors.bad_request(f"{key} must be at least 1")
    return with_batches(replace_struct(config, **changed), size, delay_ms)


def _whole(given: Mapping[str, str], key: str, default: int, most: int = LARGEST_SIZE) -> int:
    """Return a parameter as a whole number of at least 0."""
    text = given.get(key)
    if not text:
        return default
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most:
        return int(text)
    raise errors.bad_request(f"{key} must be a whole number, at most {most}, not {quote(text)}")


def _workers(given: Mapping[str, str], key: str, default: int, least: int = 1) -> int:
    workers = _whole(given, key, default)
    if not least <= workers <= MOST_WORKERS:
        instead = "; unregister a model that shall have no workers" if workers < least else ""
        raise errors.bad_request(
            f"{key} must be from {least} to {MOST_WORKERS}, not {workers}{instead}"
        )
    return workers
