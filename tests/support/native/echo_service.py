"""A gunicorn app for the HTTP server's tests: ksrv's own Falcon app over an engine that echoes.

Run it with `gunicorn tests.support.native.echo_service:service`. What a request's parameters say
happens to it: `sleep` (seconds), `fail` (a status), `break` (an exception), `header` (set by the
handler). The environment's `SERVER_TEST_SETTINGS` is a JSON object of server settings, and
`SERVER_TEST_GIL` names the pipe of a thread that keeps the GIL.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec

from ksrv.errors import Cancelled, InferenceError, NotFound, NotReady, Overloaded
from ksrv.request import InferResponse
from ksrv.server.app import make_app
from ksrv.server.credentials import Access
from ksrv.server.settings import ServerSettings
from ksrv.spec import ModelSpec
from tests.support.native.held_gil import hold_gil


class Handle:
    """A request that a thread of its own answers."""

    def __init__(self, answer: Callable[[], InferResponse]) -> None:
        self._future: Future[InferResponse] = Future()
        threading.Thread(target=self._run, args=(answer,), daemon=True).start()

    def _run(self, answer: Callable[[], InferResponse]) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            try:
                self._future.set_result(answer())
            except (InferenceError, ValueError) as error:
                self._future.set_exception(error)

    def wait(self) -> InferResponse:
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> bool:
        with suppress(InvalidStateError):  # it has ended
            self._future.set_exception(Cancelled("the request was cancelled"))
            return True
        return False

    def add_done_callback(self, callback: Callable[["Handle"], object]) -> None:
        self._future.add_done_callback(lambda _: callback(self))


class EchoEngine:
    """Answers with the inputs. The queue of the model `full` is full; `stuck` never returns."""

    specs: Mapping[str, ModelSpec] = {name: ModelSpec(name) for name in ("add", "full", "stuck")}

    def __init__(self) -> None:
        self.is_ready = True

    def spec(self, name: str, version: str = "") -> ModelSpec:
        if name not in self.specs or version not in ("", "1"):
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.specs[name]

    def find(self, name: str, version: str = "") -> Any:
        return SimpleNamespace(spec=self.spec(name, version), retired=False)

    def submit(self, request: Any, callback: Any = None, **how: Any) -> Handle:
        self.spec(request.model_name, request.model_version)
        if request.model_name == "stuck":
            threading.Event().wait()
        if request.model_name == "full":
            raise Overloaded("the queue of model 'full' holds 1 requests, which is its limit")
        if not self.is_ready and request.parameters.get("refused"):
            raise NotReady("the server is going away")
        handle = Handle(partial(self.answer, request))
        if callback is not None:
            handle.add_done_callback(callback)
        return handle

    def infer(self, request: Any) -> InferResponse:
        return self.submit(request).wait()

    def answer(self, request: Any) -> InferResponse:
        parameters = request.parameters
        time.sleep(float(parameters.get("sleep", 0)))
        if "fail" in parameters:
            raise InferenceError("as you wish", int(parameters["fail"]))
        if "break" in parameters:
            raise ValueError("broken")
        headers = {"X-Handler": str(parameters["header"])} if "header" in parameters else {}
        seen = {"seen": ",".join(sorted(request.headers))} if "headers" in parameters else {}
        return InferResponse(
            request.model_name, request.model_version, request.id, request.inputs, seen,
            headers=headers,
        )  # fmt: skip

    def routable_models(self) -> list[Any]:
        return []

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def why_not_ready(self, *, names: bool = True) -> str:
        return "" if self.is_ready else "the server is stopping"

    def drain(self) -> None:
        self.is_ready = False


class Service:
    """The app with what the worker looks for; the engine is made after the fork."""

    def __init__(self) -> None:
        text = os.environ.get("SERVER_TEST_SETTINGS", "{}")
        self.settings = msgspec.json.decode(text, type=ServerSettings)
        self.access = Access(self.settings)
        self.shared_memory = None
        self._engine: Any = None
        self._app: Any = None

    @property
    def engine(self) -> Any:
        if self._engine is None:
            self._engine = EchoEngine()
            self._app = make_app(self._engine, self.settings, access=self.access)
            if pipe := os.environ.get("SERVER_TEST_GIL"):
                threading.Thread(target=hold_gil, args=(pipe,), daemon=True).start()
        return self._engine

    def set_fast_routes(self, routes: Any) -> None:
        """Nothing: there is no gRPC here."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        assert self.engine is not None
        if environ["PATH_INFO"] in ("/pid", "/counters"):
            http_server = WORKERS[-1].http_server
            said = {
                "pid": os.getpid(),
                "scheme": environ["wsgi.url_scheme"],
                "open": http_server.open_connections if http_server else 0,
            }
            body = json.dumps(said | (http_server.counters() if http_server else {})).encode()
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        return self._app(environ, start_response)


WORKERS: list[Any] = []
service = Service()


def post_worker_init(worker: Any) -> None:
    """gunicorn's hook; given by the configuration file that the tests write."""
    WORKERS.append(worker)
