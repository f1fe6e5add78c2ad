"""TorchServe's management API over REST: register, list, scale, set the default version, unregister."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import falcon

from ksrv.dialects.dialect import AppParts
from ksrv.dialects.torchserve.routes import responses as answers
from ksrv.dialects.torchserve.routes.archives import REFUSED, Archives
from ksrv.errors import InvalidRequest, quote
from ksrv.server.audit import CONTROL_CALL, ControlCall
from ksrv.server.http.answers import status_line
from ksrv.server.rest.route_guard import check_control

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


class ManagementResource:
    """The management routes, and the health of the server."""

    def __init__(self, parts: AppParts, archives: Archives) -> None:
        self._engine = parts.engine
        self._access = parts.access
        self._read_document = parts.read_document
        self._archives = archives

    def _check(self, req: falcon.Request, action: str, subject: str) -> None:
        """Refuse a caller who may not change models, and note the call for the audit log.

        The check is here, because the same path has methods that only read and need no such right. Only the path of
        `set-default` has no such method: there `Needs.CONTROL` in the table of routes (`rest.py`) does both.

        Args:
            subject: The model or archive that the action changes.
        """
        req.env[CONTROL_CALL] = ControlCall(action, subject)
        check_control(self._access, req.env)

    def _answer(self, resp: falcon.Response, document: object) -> None:
        answers.prepare(resp)
        answers.send_document(resp, document)

    def on_get_list(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /models: answer a page of the list of served models."""
        self._answer(resp, self._archives.listed(query_of(req)))

    def on_post_list(self, req: falcon.Request, resp: falcon.Response) -> None:
        """POST /models: register an archive. The answer is sent once it serves, even without `synchronous`."""
        given: dict[str, Any] = query_of(req)
        self._check(req, "register", given.get("url", ""))
        if (req.content_type or "").startswith("application/json") and req.content_length:
            document = self._read_document(req)
            if not isinstance(document, dict):
                raise InvalidRequest('the body must be a JSON object, such as {"url": "model.mar"}')
            given.update({key: _text(value) for key, value in document.items()})
            req.env[CONTROL_CALL] = ControlCall("register", given.get("url", ""))
        unknown = [key for key in given if key not in REGISTER_KEYS]
        if unknown:
            raise InvalidRequest(
                f"the parameter {quote(unknown[0])} is unknown; registering takes {', '.join(REGISTER_KEYS)}"
            )
        message = self._archives.register(given)
        if given.get("initial_workers", "0") != "0":
            resp.status = _status(given)
        self._answer(resp, {"status": message})

    def on_put_default(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str
    ) -> None:
        """PUT /models/{name}/{version}/set-default: set the version that serves requests without a version."""
        self._answer(resp, {"status": self._archives.set_default(name, version)})

    def on_get(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """GET /models/{name}[/{version}]: describe a model."""
        customized = req.get_param("customized", default="").lower() == "true"
        self._answer(resp, self._archives.described(name, version, customized=customized))

    def on_put(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """PUT /models/{name}[/{version}]: scale a model. The answer is sent once the workers run."""
        self._check(req, "scale", name)
        given = query_of(req)
        message = self._archives.scale(name, version, given)
        resp.status = _status(given)
        self._answer(resp, {"status": message})

    def on_delete(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """DELETE /models/{name}[/{version}]: unregister a model or a version."""
        self._check(req, "unregister", name)
        self._answer(resp, {"status": self._archives.unregister(name, version)})

    def on_get_ping(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /ping: answer whether the server is ready, without credentials."""
        healthy = self._engine.ready()
        self._answer(resp, {"status": "Healthy" if healthy else "Unhealthy"})
        if not healthy:
            resp.status = falcon.HTTP_500


def query_of(req: falcon.Request) -> dict[str, str]:
    """Return the parameters of the query; if a parameter is repeated, the last value."""
    return {
        key: value[-1] if isinstance(value, list) else value for key, value in req.params.items()
    }


def _status(given: Mapping[str, Any]) -> str:
    """Return 202 for a call that starts workers, as in TorchServe, or 200 if the client asked to wait for them."""
    waits = given.get("synchronous", "").lower() == "true"
    return status_line(HTTPStatus.OK if waits else HTTPStatus.ACCEPTED)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
