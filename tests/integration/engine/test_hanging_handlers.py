"""A handler that has proven quick and then hangs: deadlines hold on every way in, and others are served.

A quick handler runs on the thread of the HTTP server that brought the request, so its hang takes that thread
with it. Each hang lasts until the test lets it go, which is after the answers have come.
"""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.wait_until import wait_until

HANDLER = """
import threading, time
from pathlib import Path


def inference(x):
    if x[0, 0] == 1:
        Path(__file__).with_name("entered").touch()
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.005)
    return {"y": x * 0 + threading.current_thread().name.startswith("ksrv-io")}
"""

TENSORS = """
inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
"""
TIMEOUTS = {"quick": 700, "second": 700, "other": 60_000}

SLOW_ROUTE = {"TE": "trailers"}
"""With this header a request is gunicorn's and not the HTTP server's."""


def infer_body(value: float, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """A request of one row of `value`, and the fields that its head has for it."""
    values = np.full((1, 1), value, "<f4")
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 1]}
    entry["parameters"] = {"binary_data_size": values.nbytes}
    text = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return text + values.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


class Served:
    """A server with models that a test can hang."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server = server
        self.root = root
        self.session = requests.Session()

    def rest(self, model: str, value: float = 0.0, headers=(), **parameters) -> requests.Response:
        """Answer one row of `value`."""
        body, head = infer_body(value, **parameters)
        return self.session.post(
            f"{self.server.url}/v2/models/{model}/infer",
            data=body,
            headers={**head, **dict(headers)},
            timeout=50,
        )

    def make_trusted(self, model: str) -> None:
        """Send requests until the HTTP server's own thread runs the handler: hundreds, so by the plainest client."""
        give_up = time.monotonic() + 60
        body, head = infer_body(0.0)
        connection = http.client.HTTPConnection(self.server.http, timeout=50)
        with closing(connection):
            while True:
                connection.request("POST", f"/v2/models/{model}/infer", body, head)
                answer = connection.getresponse()
                text = answer.read()
                assert answer.status in (200, 504), text  # a busy machine may be late
                if answer.status == 200 and json.loads(text)["outputs"][0]["data"] == [1.0]:
                    return
                assert time.monotonic() < give_up, "the HTTP server claimed no slot"

    @contextmanager
    def hanging(self, *models: str) -> Iterator[None]:
        """Let go of the models' handlers at the end, and see that they serve again."""
        for model in models:
            (self.root / model / "go").unlink(missing_ok=True)
            self.entered(model).unlink(missing_ok=True)
        try:
            yield
            assert all(self.entered(model).exists() for model in models)
        finally:
            for model in models:
                (self.root / model / "go").touch()
        for model in models:
            wait_until(lambda model=model: self.rest(model).status_code == 200)

    def entered(self, model: str) -> Path:
        """The file that tells that a handler hangs."""
        return self.root / model / "entered"

    def hang(self, model: str) -> threading.Thread:
        """Send a request that hangs from a separate client, and wait until it hangs."""
        client = Served(self.server, self.root)
        thread = threading.Thread(target=client.send_until_entered, args=(model,))
        thread.start()
        wait_until(self.entered(model).exists)
        return thread

    def send_until_entered(self, model: str) -> None:
        """Send requests that hang; a deadline may pass before a handler is there."""
        while not self.entered(model).exists():
            self.rest(model, 1.0)


TOO_EARLY = ("before a handler could start it", "had passed when it arrived")


def in_the_handler(send) -> str:
    """Send requests until a deadline passes in a handler, and not before it; return the error's text."""
    give_up = time.monotonic() + 60
    while True:
        text = send()
        if not any(words in text for words in TOO_EARLY):
            return text
        assert time.monotonic() < give_up, text


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("hanging")
    for name, timeout in TIMEOUTS.items():
        write_model(root, name, HANDLER, f"{TENSORS}executor: inline\ntimeout_ms: {timeout}\n")
    with Server(root) as server:
        yield Served(server, root)


@pytest.mark.parametrize("parameters", [{}, {"timeout": 300_000}], ids=["model", "request"])
@pytest.mark.parametrize(
    ("headers", "more"),
    [({}, {"binary_data_output": True}), ({}, {}), (SLOW_ROUTE, {})],
    ids=["plain", "native", "gunicorn"],
)
def test_rest_answers_at_the_deadline(served, headers, more, parameters):
    served.make_trusted("quick")

    def send():
        answer = served.rest("quick", 1.0, headers, **more, **parameters)
        assert answer.status_code == 504, answer.text
        return answer.json()["error"]

    with served.hanging("quick"):
        assert "while the handler ran" in in_the_handler(send)


@pytest.mark.parametrize("parameters", [{}, {"timeout": 300_000}], ids=["model", "request"])
def test_grpc_answers_at_the_deadline(served, parameters):
    served.make_trusted("quick")
    values = triton.InferInput("x", [1, 1], "FP32")
    values.set_data_from_numpy(np.ones((1, 1), "f4"))
    with triton.InferenceServerClient(served.server.grpc) as client, served.hanging("quick"):

        def send():
            with pytest.raises(triton.InferenceServerException) as failure:
                client.infer("quick", [values], client_timeout=50, **parameters)
            assert failure.value.status() == "StatusCode.DEADLINE_EXCEEDED"
            return failure.value.message()

        assert "while the handler ran" in in_the_handler(send)


def test_the_http_server_serves_others_while_handlers_hang_on_its_threads(served):
    """Two models in turn take the thread that entered Python with them."""
    models = ("quick", "second", "other")
    for model in models:
        served.make_trusted(model)
    with served.hanging("quick", "second"):
        threads = [served.hang("quick")]
        assert served.rest("other").status_code == 200
        threads.append(served.hang("second"))
        for _ in range(20):
            assert served.rest("other").status_code == 200
            health = requests.get(f"{served.server.url}/v2/health/live", timeout=50)
            assert health.status_code == 200
        late = served.rest("quick", 0.0, timeout=50_000)
        assert late.status_code == 504, late.text
        assert any(words in late.json()["error"] for words in TOO_EARLY)
        for thread in threads:
            thread.join()
    for model in models:
        served.make_trusted(model)
