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
    """The routes for what is served, and for the health of the server.

    Args:
        archives: The models, as TorchServe's clients know them.
    """

    def __init__(self, parts: AppParts, archives: Archives) -> None:
        self._engine = parts.engine
        self._access = parts.access
        self._read_document = parts.read_document
        self._archives = archives

    def _check(self, req: falcon.Request, action: str, subject: str) -> None:
        """Let a caller pass who may change what is served; on a path that others may read.

        Args:
            action: The action in the call's record.
            subject: The model or archive that it does it to.
        """
        req.env[CONTROL_CALL] = ControlCall(action, subject)
        check_control(self._access, req.env)

    def _answer(self, resp: falcon.Response, document: object) -> None:
        answers.prepare(resp)
        answers.send_document(resp, document)

    def on_get_list(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /models: answer a page of the list of the models that serve."""
        self._answer(resp, self._archives.listed(query_of(req)))

    def on_post_list(self, req: falcon.Request, resp: falcon.Response) -> None:
        """POST /models: register an archive; the answer comes once it serves, whatever `synchronous` says."""
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
        told = self._archives.register(given)
        if given.get("initial_workers", "0") != "0":
            resp.status = _status(given)
        self._answer(resp, {"status": told})

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
        """Scale a model; the answer comes once the workers are there, whatever `synchronous` says."""
        self._check(req, "scale", name)
        given = query_of(req)
        told = self._archives.scale(name, version, given)
        resp.status = _status(given)
        self._answer(resp, {"status": told})

    def on_delete(
        self, req: falcon.Request, resp: falcon.Response, name: str, version: str = ""
    ) -> None:
        """Unregister a model or a version."""
        self._check(req, "unregister", name)
        self._answer(resp, {"status": self._archives.unregister(name, version)})

    def on_get_ping(self, req: falcon.Request, resp: falcon.Response) -> None:
        """GET /ping: answer whether the server is ready, without credentials."""
        healthy = self._engine.ready()
        self._answer(resp, {"status": "Healthy" if healthy else "Unhealthy"})
        if not healthy:
            resp.status = falcon.HTTP_500


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
