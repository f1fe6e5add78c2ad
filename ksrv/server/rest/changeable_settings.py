"""The routes that show and change what is logged and traced."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import falcon

from ksrv.server.changeable_settings import ChangeableSettings
from ksrv.server.http.answers import send_json

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

ReadDocument = Callable[[falcon.Request], Mapping[str, Any]]


class LoggingResource:
    """GET and POST /v2/logging."""

    def __init__(self, settings: ChangeableSettings, read_document: ReadDocument) -> None:
        self._settings = settings
        self._read_document = read_document

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer the settings."""
        send_json(resp, self._settings.log())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Change the level, and answer the settings."""
        send_json(resp, self._settings.log(self._read_document(req)))


class TraceResource:
    """GET and POST /v2/trace/setting, and the same of one model."""

    def __init__(
        self, settings: ChangeableSettings, engine: "Engine", read_document: ReadDocument
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._read_document = read_document

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str = "") -> None:
        """Answer the settings."""
        self._check(name)
        send_json(resp, self._settings.trace(name))

    def on_post(self, req: falcon.Request, resp: falcon.Response, name: str = "") -> None:
        """Change what is traced, and answer the settings."""
        self._check(name)
        send_json(resp, self._settings.trace(name, self._read_document(req)))

    def _check(self, name: str) -> None:
        if name:
            self._engine.spec(name, "")
