"""A gunicorn app for the HTTP server's tests: ksrv's Falcon app and engine, with a model that echoes.

Run it with `gunicorn tests.support.native.echo_service:service`. A request's parameters
decide about it: `sleep` (seconds), `fail` (a status), `break` (an exception), `header` (set by the
handler), `headers` (names the received headers). The environment's `SERVER_TEST_SETTINGS` is a JSON object of server
settings, `SERVER_TEST_MODELS` the folder that `write_models` has filled, and `SERVER_TEST_GIL` names the
pipe of a thread that keeps the GIL.
"""

import functools
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, RequestHandle
from ksrv.server.app import make_app
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from ksrv.server.workers.io_threads import IoThreads
from tests.support.native.held_gil import hold_gil

HANDLERS = """
from ksrv import BaseHandler


class Echo(BaseHandler):
    def handle(self, batch, context):
        request = batch.requests[0]
        if "headers" in request.parameters:
            batch.set_parameter(0, "seen", ",".join(sorted(request.headers)))
        return {name: batch[name] for name in batch}
"""
MODELS = {
    "add": "handler: handler.py:Echo\ninstances: 4\nwarmup: false\n",
    "stuck": "handler: handler.py:Echo\nwarmup: false\n",
}


def write_models(root: Path) -> None:
    """Write the models, each with one version."""
    for name, settings in MODELS.items():
        version = root / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "handler.py").write_text(HANDLERS)
        (root / name / "model.yaml").write_text(settings)


class EchoEngine(Engine):
    """The engine over these models. Requests to `stuck` never end."""

    def __init__(self, root: Path) -> None:
        self.finds = 0
        super().__init__(Repository([root]), EngineSettings())
        self.start()

    def submit(self, request: InferRequest, *how: Any, **options: Any) -> RequestHandle:
        """See `Engine.submit`."""
        if request.model_name == "stuck":
            threading.Event().wait()
        return super().submit(request, *how, **options)

    def find(self, *which: Any, **options: Any) -> Any:
        """See `Engine.find`."""
        self.finds += 1
        return super().find(*which, **options)


class CountedAccess(Access):
    """Counts the checks of callers."""

    checks = 0

    def check(self, *given: Any) -> Any:
        """See `Access.check`."""
        self.checks += 1
        return super().check(*given)


class Service:
    """The app with what the worker looks for; the engine is made after the fork."""

    def __init__(self) -> None:
        text = os.environ.get("SERVER_TEST_SETTINGS", "{}")
        self.settings = msgspec.json.decode(text, type=ServerSettings)
        self._access = CountedAccess(self.settings)
        self.calls = 0  # of the app, without calls for these numbers
        self._engine: Any = None
        self._app: Any = None

    @property
    def engine(self) -> Any:
        if self._engine is None:
            self._engine = EchoEngine(Path(os.environ["SERVER_TEST_MODELS"]))
            self.parts = server_parts(self._engine, self.settings, self._access)
            self._app = make_app(self.parts)
            if pipe := os.environ.get("SERVER_TEST_GIL"):
                threading.Thread(target=hold_gil, args=(pipe,), daemon=True).start()
        return self._engine

    @functools.cached_property
    def io_threads(self) -> IoThreads:
        return IoThreads(self.settings.io_threads)

    def set_fast_routes(self, routes: Any) -> None:
        """Do nothing, because this service has no gRPC."""

    def wanted_body(self, environ: Any) -> Any:
        assert self.engine is not None
        return self._app.wanted_body(environ)

    def __call__(self, environ: Any, start_response: Any) -> Any:
        assert self.engine is not None
        if environ["PATH_INFO"] not in ("/pid", "/counters"):
            self.calls += 1
        else:
            http_server = getattr(WORKERS[-1], "http_server", None)
            said = {
                "pid": os.getpid(),
                "calls": self.calls,
                "checks": self._access.checks,
                "finds": self.engine.finds,
                "scheme": environ["wsgi.url_scheme"],
                "open": http_server.open_connections if http_server else 0,
            }
            body = json.dumps((http_server.counters() if http_server else {}) | said).encode()
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        return self._app(environ, start_response)


WORKERS: list[Any] = []
service = Service()


def post_worker_init(worker: Any) -> None:
    """gunicorn's hook; given by the configuration file that the tests write."""
    WORKERS.append(worker)
