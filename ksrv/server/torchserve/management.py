"""TorchServe's management API, on the repository API: register, list, scale, set the default version, unregister.

`url` names an archive of the model store, which is the repository that is served. What changes, changes in every worker, and lasts
until the server ends: workers of a model and its default version are not written to the store. Every change is a load,
during which the old versions serve.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import falcon
from msgspec.structs import replace as replace_struct

from ksrv.errors import HandlerFailed, InvalidRequest, KsrvError, NotFound, quote
from ksrv.repository.entry import ModelEntry
from ksrv.server.audit import CONTROL_CALL
from ksrv.server.credentials import Access
from ksrv.server.rest.route_guard import Needs, check_control
from ksrv.server.torchserve import errors
from ksrv.server.torchserve import responses as answers
from ksrv.server.torchserve.errors import TorchServeError
from ksrv.source import ModelSource
from ksrv.torchserve.calls import FORMAT

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]

MOST_LISTED = 100
MOST_WORKERS = 1024
REGISTER_KEYS = (
    "url",
    "model_name",
    "initial_workers",
    "synchronous",
    "batch_size",
    "max_batch_delay",
    "response_timeout",
    "startup_timeout",
    "handler",
    "runtime",
    "s3_sse_kms",
)
REFUSED = ("handler", "runtime", "s3_sse_kms")


class ManagementRoutes:
    """What the resources share: the engine, and the rights of callers.

    Args:
        read_document: Reads the JSON of a request.
    """

    def __init__(self, engine: "Engine", access: Access, read_document: ReadDocument) -> None:
        self.engine = engine
        self._access = access
        self.read_document = read_document

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        """Add the routes that TorchServe's clients of this server do not only read."""
        app.add_route("/models", ModelsResource(self), needs=Needs.TOKEN)
        app.add_route(
            "/models/{name}/{version}/set-default", DefaultResource(self), needs=Needs.CONTROL
        )

    def check(self, req: falcon.Request) -> None:
        """Let a caller pass who may change what is served; on a path that others may read."""
        req.env[CONTROL_CALL] = req.uri_template
        check_control(self._access, req.env)

    # ---- what is served ---------------------------------------------------------------------

    def served(self, name: str) -> "dict[str, ModelVersion]":
        """Return the versions of a model that serve, the default one last.

        Raises:
            TorchServeError: There are none.
        """
        found = {one.spec.version: one for one in self.engine.loaded() if one.spec.name == name}
        if not found:
            raise errors.model_not_found(name)
        default = self.engine.find(name)
        found[default.spec.version] = found.pop(default.spec.version, default)
        return found

    def names(self) -> dict[str, str]:
        """Return the archives by the names of the models that serve."""
        return {
            one.spec.name: str(one.config.dialect.get(FORMAT, {}).get("archive", one.spec.name))
            for one in self.engine.loaded()
        }

    # ---- changes ----------------------------------------------------------------------------

    def load(
        self, name: str, change: Callable[[dict[str, ModelSource]], dict[str, ModelSource]]
    ) -> None:
        """Load a model with other versions, or the same in another order or with other settings.

        Args:
            change: Returns the versions to serve, the default one last, from those of the store.
        """

        def adjust(entry: ModelEntry) -> ModelEntry:
            return replace(entry, versions=change(dict(entry.versions)))

        self.engine.load(name, adjust=adjust)

    def register(self, given: Mapping[str, str]) -> tuple[str, str, int]:
        """Load an archive of the store; return the model's name, version and number of workers.

        Raises:
            TorchServeError: There is no such archive, it is registered already, or it cannot be loaded.
        """
        url = given.get("url", "")
        if not url:
            raise TorchServeError(400, "BadRequestException", "Parameter url is required.")
        entry, version, source = self._archive(url)
        name = given.get("model_name") or entry.name
        if name != entry.name:
            raise TorchServeError(
                400,
                "BadRequestException",
                f"model_name is {quote(name)}, and the archive's manifest names the model {entry.name!r}",
            )
        for key in REFUSED:
            if given.get(key):
                text = f"{key} comes from the archive's manifest, and cannot be given with a call"
                raise TorchServeError(400, "BadRequestException", text)
        known = [one.spec.version for one in self.engine.loaded() if one.spec.name == name]
        if version in known:
            text = f"Model version {version} is already registered for model {name}"
            raise TorchServeError(409, "ConflictStatusException", text)
        workers = max(
            1,
            _whole(
                given, "initial_workers", 1 if source.config is None else source.config.instances
            ),
        )
        settings = _settings(given) | {"instances": workers}
        order = list(self.served(name)) if known else []

        def change(versions: dict[str, ModelSource]) -> dict[str, ModelSource]:
            wanted = [version, *order] if order else [version]
            found = {one: versions[one] for one in wanted if one in versions}
            found[version] = _with(found[version], settings)
            found.update({one: found.pop(one) for one in order if one in found})
            return found

        try:
            self.load(name, change)
        except HandlerFailed:
            text = f"Failed to start workers for model {name} version: {version}"
            raise TorchServeError(500, errors.INTERNAL, text) from None
        return name, version, workers

    def _archive(self, url: str) -> tuple[ModelEntry, str, ModelSource]:
        if "://" in url:
            text = f"Given URL {url[:128]} does not match any allowed URL(s)"
            raise TorchServeError(404, "ModelNotFoundException", text)
        if ".." in url.split("/") or url.startswith("/"):
            text = f"Relative path is not allowed in url: {url[:128]}"
            raise TorchServeError(404, "ModelNotFoundException", text)
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
                raise TorchServeError(400, "BadRequestException", entry.error)
        raise TorchServeError(404, "ModelNotFoundException", f"Model not found at: {url[:128]}")

    def scale(self, name: str, version: str, workers: int) -> None:
        """Load a version, or the default one, with another number of workers."""
        served = self.served(name)
        wanted = version or next(reversed(served))
        if wanted not in served:
            raise errors.version_not_found(name, version)
        if served[wanted].config.instances == workers:
            return
        counts = {one: model.config.instances for one, model in served.items()}
        counts[wanted] = workers

        def change(versions: dict[str, ModelSource]) -> dict[str, ModelSource]:
            return {
                one: _with(versions[one], {"instances": count})
                for one, count in counts.items()
                if one in versions
            }

        self.load(name, change)

    def set_default(self, name: str, version: str) -> None:
        """Have a version serve the requests that name none."""
        served = self.served(name)
        if version not in served:
            raise errors.version_not_found(name, version)
        self._keep(name, [*(one for one in served if one != version), version], served)

    def unregister(self, name: str, version: str) -> None:
        """Unload a model, or one version of it that is not the default one."""
        served = self.served(name)
        default = next(reversed(served))
        if not version or (version == default and len(served) == 1):
            self.engine.unload(name)
            return
        if version not in served:
            raise errors.version_not_found(name, version)
        if version == default:
            text = f"Cannot remove default version for model {name}"
            raise TorchServeError(403, "InvalidModelVersionException", text)
        self._keep(name, [one for one in served if one != version], served)

    def _keep(self, name: str, order: list[str], served: "Mapping[str, ModelVersion]") -> None:
        counts = {one: served[one].config.instances for one in order}

        def change(versions: dict[str, ModelSource]) -> dict[str, ModelSource]:
            return {
                one: _with(versions[one], {"instances": counts[one]})
                for one in order
                if one in versions
            }

        self.load(name, change)


def _with(source: ModelSource, settings: Mapping[str, Any]) -> ModelSource:
    if source.config is None:
        return source
    own = dict(settings)
    batching = own.pop("batching", None)
    config = replace_struct(source.config, **own)
    if batching is not None:
        config = replace_struct(config, batching=batching(config))
    return replace_struct(source, config=config)


def _settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a model that a call to register it may give."""
    found: dict[str, Any] = {}
    if given.get("response_timeout"):
        found["run_timeout_ms"] = _whole(given, "response_timeout", 0) * 1000
    if given.get("startup_timeout"):
        found["start_timeout_s"] = float(_whole(given, "startup_timeout", 0))
    for key in ("batch_size", "max_batch_delay"):
        if given.get(key) not in (None, "", "1", "100"):
            raise TorchServeError(
                400,
                "BadRequestException",
                f"{key} comes from the archive's model-config.yaml (batchSize, maxBatchDelay), and cannot be given "
                f"with a call",
            )
    return found


def _whole(given: Mapping[str, str], key: str, default: int) -> int:
    text = given.get(key)
    if text in (None, ""):
        return default
    if not (str(text).isascii() and str(text).isdigit() and int(str(text)[:9]) <= 100_000_000):
        raise TorchServeError(
            400, "BadRequestException", f"{key} must be a whole number, not {quote(text)}"
        )
    return int(str(text)[:9])


def _workers(given: Mapping[str, str], key: str, default: int) -> int:
    workers = _whole(given, key, default)
    if not 1 <= workers <= MOST_WORKERS:
        raise TorchServeError(
            400,
            "BadRequestException",
            f"{key} must be from 1 to {MOST_WORKERS}, not {workers}; unregister a model that shall have no workers",
        )
    return workers


class _Resource:
    def __init__(self, routes: ManagementRoutes) -> None:
        self._routes = routes

    def _answer(self, resp: falcon.Response, act: Callable[[], Any], status: int = 200) -> None:
        """Answer what a call returns, or its failure in TorchServe's form."""
        answers.prepare(resp)
        try:
            answers.send_document(resp, act())
            resp.status = falcon.code_to_http_status(status)
        except TorchServeError as error:
            answers.send_error(resp, error)
        except NotFound as error:
            answers.send_error(resp, TorchServeError(404, "ModelNotFoundException", error.message))
        except KsrvError as error:
            answers.send_error(resp, errors.translated(error))


class ModelsResource(_Resource):
    """GET /models: the models that serve; POST /models: register an archive of the store."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a page of the list."""

        def act() -> Any:
            names = sorted(self._routes.names().items())
            first = _whole(_query(req), "next_page_token", 0)
            limit = min(_whole(_query(req), "limit", MOST_LISTED) or MOST_LISTED, MOST_LISTED)
            page = names[first : first + limit]
            document: dict[str, Any] = {}
            if first + limit < len(names):
                document["nextPageToken"] = str(first + limit)
            document["models"] = [{"modelName": one, "modelUrl": url} for one, url in page]
            return document

        self._answer(resp, act)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Register an archive; the answer comes once it serves, whatever `synchronous` says."""
        self._routes.check(req)

        def act() -> Any:
            given: dict[str, Any] = _query(req)
            if (req.content_type or "").startswith("application/json") and req.content_length:
                document = self._routes.read_document(req)
                if not isinstance(document, dict):
                    raise InvalidRequest("the body must be a JSON object")
                given |= {key: _text(value) for key, value in document.items()}
            unknown = [key for key in given if key not in REGISTER_KEYS]
            if unknown:
                raise InvalidRequest(
                    f"the parameter {quote(unknown[0])} is unknown; registering takes {', '.join(REGISTER_KEYS)}"
                )
            name, version, workers = self._routes.register(given)
            return {
                "status": f'Model "{name}" Version: {version} registered with {workers} initial workers'
            }

        self._answer(resp, act)


def _query(req: falcon.Request) -> dict[str, str]:
    """Return the parameters of the query; of one that is repeated the last."""
    return {
        key: value[-1] if isinstance(value, list) else value for key, value in req.params.items()
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class DefaultResource(_Resource):
    """PUT /models/{name}/{version}/set-default."""

    def on_put(self, req: falcon.Request, resp: falcon.Response, name: str, version: str) -> None:
        """Set the version that serves requests without one."""

        def act() -> Any:
            self._routes.set_default(name, version)
            return {
                "status": f'Default version successfully updated for model "{name}" to "{version}"'
            }

        self._answer(resp, act)


class ChangingResource(_Resource):
    """PUT and DELETE /models/{name}[/{version}], beside the GET that describes it."""

    def on_put(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Scale a model; the answer comes once the workers are there, whatever `synchronous` says."""
        self._routes.check(req)

        def act() -> Any:
            workers = _workers(_query(req), "min_worker", 1)
            most = _workers(_query(req), "max_worker", workers)
            if most < workers:
                raise InvalidRequest(f"max_worker is {most}, below min_worker, which is {workers}")
            self._routes.scale(name, version, workers)
            shown = f"{name}, version: {version}" if version else name
            return {"status": f"Workers scaled to {workers} for model: {shown}"}

        self._answer(resp, act)

    def on_delete(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Unregister a model or a version."""
        self._routes.check(req)

        def act() -> Any:
            self._routes.unregister(name, version)
            return {"status": f'Model "{name}" unregistered'}

        self._answer(resp, act)
