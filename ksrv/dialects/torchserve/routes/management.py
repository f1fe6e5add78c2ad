"""TorchServe's management API over REST: register, list, scale, set the default version, unregister."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import falcon

from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import REFUSED, Archives
from ksrv.errors import InvalidRequest, quote
from ksrv.server.audit import CONTROL_CALL, ControlCall
from ksrv.server.credentials import Access
from ksrv.server.http.answers import status_line
from ksrv.server.rest.route_guard import Needs, check_control

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]

REGISTER_KEYS = (
    "url",
    "model_name",
    "initial_workers",
    "synchronous",
    "batch_size",
    "max_batch_delay",
    "response_timeout",
    "startup_timeout",
    *REFUSED,
)


class ManagementRoutes:
    """The state that the resources share: the archives, and the rights of callers.

    Args:
        read_document: Reads the JSON of a request.
    """

    def __init__(self, archives: Archives, access: Access, read_document: ReadDocument) -> None:
        self.archives = archives
        self._access = access
        self.read_document = read_document

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        """Add the routes that TorchServe's clients of this server do not only read."""
        app.add_route("/models", ModelsResource(self), needs=Needs.TOKEN)
        app.add_route(
            "/models/{name}/{version}/set-default", DefaultResource(self), needs=Needs.CONTROL
        )

    def check(self, req: falcon.Request, action: str, subject: str) -> None:
        """Let a caller pass who may change what is served; on a path that others may read.

        Args:
            action: The action in the call's record.
            subject: The model or archive that it does it to.
        """
        req.env[CONTROL_CALL] = ControlCall(action, subject)
        check_control(self._access, req.env)


class _Resource:
    def __init__(self, routes: ManagementRoutes) -> None:
        self._routes = routes

    def _answer(self, resp: falcon.Response, document: object) -> None:
        answers.prepare(resp)
        answers.send_document(resp, document)


class ModelsResource(_Resource):
    """GET /models: the models that serve; POST /models: register an archive of the store."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a page of the list."""
        self._answer(resp, self._routes.archives.listed(query_of(req)))

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Register an archive; the answer comes once it serves, whatever `synchronous` says."""
        given: dict[str, Any] = query_of(req)
        self._routes.check(req, "register", given.get("url", ""))
        if (req.content_type or "").startswith("application/json") and req.content_length:
            document = self._routes.read_document(req)
            if not isinstance(document, dict):
                raise InvalidRequest('the body must be a JSON object, such as {"url": "model.mar"}')
            given.update({key: _text(value) for key, value in document.items()})
            req.env[CONTROL_CALL] = ControlCall("register", given.get("url", ""))
        unknown = [key for key in given if key not in REGISTER_KEYS]
        if unknown:
            raise InvalidRequest(
                f"the parameter {quote(unknown[0])} is unknown; registering takes {', '.join(REGISTER_KEYS)}"
            )
        told = self._routes.archives.register(given)
        if given.get("initial_workers", "0") != "0":
            resp.status = _status(given)
        self._answer(resp, {"status": told})


def query_of(req: falcon.Request) -> dict[str, str]:
    """Return the parameters of the query; of one that is repeated the last."""
    return {
        key: value[-1] if isinstance(value, list) else value for key, value in req.params.items()
    }


def _status(given: Mapping[str, Any]) -> str:
    """Return the status of a call that starts workers: TorchServe answers 202 to clients that do not wait for them."""
    waits = given.get("synchronous", "").lower() == "true"
    return status_line(HTTPStatus.OK if waits else HTTPStatus.ACCEPTED)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class DefaultResource(_Resource):
    """PUT /models/{name}/{version}/set-default."""

    def on_put(self, req: falcon.Request, resp: falcon.Response, name: str, version: str) -> None:
        """Set the version that serves requests without one."""
        self._answer(resp, {"status": self._routes.archives.set_default(name, version)})


class ChangingResource(_Resource):
    """PUT and DELETE /models/{name}[/{version}], beside the GET that describes it."""

    def on_put(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Scale a model; the answer comes once the workers are there, whatever `synchronous` says."""
        self._routes.check(req, "scale", name)
        given = query_of(req)
        told = self._routes.archives.scale(name, version, given)
        resp.status = _status(given)
        self._answer(resp, {"status": told})

    def on_delete(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Unregister a model or a version."""
        self._routes.check(req, "unregister", name)
        self._answer(resp, {"status": self._routes.archives.unregister(name, version)})
