"""The engine's guarantees, seen by the clients of a real server over REST and gRPC."""

import itertools
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.wait_until import wait_until

MODEL = """
handler: handler.py
inputs:
  - {{name: x, datatype: FP32, shape: {shape}}}
outputs:
  - {{name: y, datatype: FP32, shape: {shape}}}
warmup: false
{more}
"""

HANDLER = """
import time
from pathlib import Path
from ksrv import BaseHandler

HERE = Path(__file__).parent


class Handler(BaseHandler):
    def handle(self, batch, context):
        x = batch["x"]
        for part in batch.requests:
            asked = part.parameters
            if "hold" in asked:
                (HERE / f"began-{asked['hold']}").touch()
                while not (HERE / f"go-{asked['hold']}").exists():
                    time.sleep(0.005)
            if "fail" in asked:
                batch.fail(part.slice.start, "this row is bad", 422)
        return {"y": x * 2}
"""

MODELS = {
    "plain": ("[-1, 4]", "timeout_ms: 60000"),
    "small": ("[-1, 4]", "queue_size: 2"),
    "batched": ("[-1, 4]", "batching: {max_batch_size: 4}"),
    "split": ("[-1, 4]", "batching: {max_batch_size: 4, split: true}"),
    "parts": ("[-1, 4]", "queue_size: 2\nbatching: {max_batch_size: 4, split: true}"),
    "open": ("[-1, -1]", "batching: {max_batch_size: 8, max_delay_ms: 20}"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, (shape, more) in MODELS.items():
        model = folder / name
        model.mkdir()
        (model / "model.yaml").write_text(MODEL.format(shape=shape, more=more))
        (model / "handler.py").write_text(HANDLER)
    with Server(folder) as running:
        running.folder = folder
        yield running


class Hold:
    """A handler that is asked to `hold` this turn does not go on before the context ends."""

    turns = itertools.count()

    def __init__(self, server, model):
        self._folder = server.folder / model
        self.turn = next(self.turns)

    def began(self):
        return (self._folder / f"began-{self.turn}").exists()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        (self._folder / f"go-{self.turn}").touch()


def waiting(server, model):
    """How many requests wait in the queue of a model."""
    page = requests.get(f"{server.url}/metrics", timeout=30).text
    name = rf'ksrv_pending_requests\{{model="{model}",version=""\}}'
    return float(re.search(rf"^{name} (\S+)$", page, re.M)[1])


class Rest:
    """One client of the REST routes; answers are a status and an array or an error text."""

    def __init__(self, server):
        self.url = server.url

    def infer(self, model, x, timeout_us=None, **parameters):
        x = np.asarray(x, np.float32)
        if timeout_us is not None:
            parameters["timeout"] = timeout_us
        entry = {
            "name": "x",
            "datatype": "FP32",
            "shape": list(x.shape),
            "parameters": {"binary_data_size": x.nbytes},
        }
        document = {"inputs": [entry], "parameters": parameters}
        document["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
        head = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        url = f"{self.url}/v2/models/{model}/infer"
        response = requests.post(url, head + x.tobytes(), headers=headers, timeout=30)
        if response.status_code != 200:
            self.retry_after = response.headers.get("Retry-After")
            return response.status_code, response.json()["error"]
        length = int(response.headers["Inference-Header-Content-Length"])
        (output,) = json.loads(response.content[:length])["outputs"]
        data = np.frombuffer(response.content[length:], np.float32)
        return 200, data.reshape(output["shape"])


class Grpc:
    """The same calls over gRPC; its statuses are mapped to REST's."""

    STATUS = {
        "StatusCode.INVALID_ARGUMENT": 400,
        "StatusCode.NOT_FOUND": 404,
        "StatusCode.RESOURCE_EXHAUSTED": 503,
        "StatusCode.UNAVAILABLE": 503,
        "StatusCode.DEADLINE_EXCEEDED": 504,
        "StatusCode.INTERNAL": 500,
        "StatusCode.ABORTED": 409,
    }

    def __init__(self, server):
        self.client = triton.InferenceServerClient(server.grpc)

    def infer(self, model, x, timeout_us=None, **parameters):
        x = np.asarray(x, np.float32)
        entry = triton.InferInput("x", x.shape, "FP32")
        entry.set_data_from_numpy(x)
        try:
            result = self.client.infer(
                model, [entry], parameters=parameters or None, timeout=timeout_us
            )
        except InferenceServerException as error:
            return self.STATUS[error.status()], error.message()
        return 200, result.as_numpy("y")


@pytest.fixture(params=[Rest, Grpc], ids=["rest", "grpc"])
def client(request, server):
    return request.param(server)


ONE = np.ones((1, 4))


@pytest.fixture(autouse=True)
def good_afterwards(server):
    """After each test, the next request of everybody is answered exactly."""
    yield
    for model in MODELS:
        end = time.monotonic() + 60
        while (answer := Rest(server).infer(model, ONE * 3))[0] in (503, 504):
            assert time.monotonic() < end, answer
            time.sleep(0.02)
        assert answer[0] == 200 and (answer[1] == 6).all(), (model, answer)


def test_requests_deadline_applies_before_the_models(server, client):
    with ThreadPoolExecutor(1) as pool, Hold(server, "plain") as hold:
        blocking = pool.submit(client.infer, "plain", ONE, hold=hold.turn)
        wait_until(hold.began)
        status, text = client.infer("plain", ONE, timeout_us=50_000)
        assert status == 504 and "plain" in text
    assert blocking.result()[0] == 200


def test_a_batch_above_the_maximum(client):
    status, text = client.infer("batched", np.ones((5, 4)))
    assert status == 400 and "5 rows" in text and "(4 rows)" in text
    rows = np.arange(44, dtype=np.float32).reshape(11, 4)
    status, data = client.infer("split", rows)
    assert status == 200 and np.array_equal(data, rows * 2)


@pytest.mark.parametrize("more", [{}, {"seen": True}], ids=["fast path", "with parameters"])
def test_more_parts_than_the_queue_holds(client, more):
    status, text = client.infer("parts", np.ones((9, 4)), **more)
    assert status == 400
    for part in ("9 rows", "3 batches", "(4 rows)", "'queue_size' (2 requests)", "at most 8 rows"):
        assert part in text
    status, data = client.infer("parts", np.ones((8, 4)), **more)
    assert status == 200 and (data == 2).all()


def test_mixed_shapes_get_answers_of_their_shape(client):
    def one(n):
        return n, client.infer("open", np.full((1 + n % 3, 2 + n % 4), n))

    with ThreadPoolExecutor(12) as pool:
        for n, (status, data) in pool.map(one, range(48)):
            assert status == 200
            assert data.shape == (1 + n % 3, 2 + n % 4) and (data == 2 * n).all()


def test_one_bad_row_fails_its_request_alone(server, client):
    with ThreadPoolExecutor(3) as pool, Hold(server, "batched") as hold:
        blocking = pool.submit(client.infer, "batched", ONE, hold=hold.turn)
        wait_until(hold.began)
        bad = pool.submit(client.infer, "batched", ONE, fail=True)
        good = pool.submit(client.infer, "batched", ONE * 7)
        wait_until(lambda: waiting(server, "batched") == 2)
    assert blocking.result()[0] == 200
    status, text = bad.result()
    assert status in (422, 400) and "this row is bad" in text
    status, data = good.result()
    assert status == 200 and (data == 14).all()


def test_a_cancelled_call_frees_its_place(server):
    channel = triton.InferenceServerClient(server.grpc)
    entry = triton.InferInput("x", [1, 4], "FP32")
    entry.set_data_from_numpy(ONE.astype(np.float32))
    ended = threading.Semaphore(0)

    def start(**parameters):
        return channel.async_infer(
            "small", [entry], lambda result, error: ended.release(), parameters=parameters
        )

    with ThreadPoolExecutor(1) as pool, Hold(server, "small") as hold:
        start(hold=hold.turn)
        wait_until(hold.began)
        calls = [start(), start()]
        wait_until(lambda: waiting(server, "small") == 2)
        assert Rest(server).infer("small", ONE)[0] == 503
        calls[0].cancel()
        wait_until(lambda: waiting(server, "small") == 1)
        late = pool.submit(Rest(server).infer, "small", ONE)
        wait_until(lambda: waiting(server, "small") == 2)
    assert late.result()[0] == 200
    for _ in range(3):
        assert ended.acquire(timeout=60)


def test_reloads_over_the_repository_api_fail_no_request(server):
    failures = []
    stop = threading.Event()

    def send(client):
        while not stop.is_set():
            status, data = client.infer("batched", ONE * 4)
            if status != 200 or not (data == 8).all():
                failures.append((status, data))

    threads = [threading.Thread(target=send, args=(kind(server),)) for kind in (Rest, Grpc) * 2]
    for thread in threads:
        thread.start()
    for _ in range(20):
        url = f"{server.url}/v2/repository/models/batched/load"
        assert requests.post(url, timeout=30).status_code == 200
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
