"""The engine's guarantees, seen by the clients of a real server over REST and gRPC."""

import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton

from ksrv.client import Client, DeadlineExceeded, StatusError
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


class Caller:
    """Calls a model over one protocol; answers are a status and an array or an error text."""

    def __init__(self, server, protocol="rest"):
        self.client = Client(
            server.url if protocol == "rest" else f"grpc://{server.grpc}", retries=0
        )

    def infer(self, model, x, **parameters):
        try:
            answer = self.client.infer(model, {"x": np.float32(x)}, parameters=parameters)
        except StatusError as error:
            return error.status, error.message
        except DeadlineExceeded as error:
            return 504, str(error)
        return 200, answer["y"]


@pytest.fixture(params=["rest", "grpc"])
def client(request, server):
    return Caller(server, request.param)


ONE = np.ones((1, 4))


@pytest.fixture(autouse=True)
def good_afterwards(server):
    """After each test, the next request of everybody is answered exactly."""
    yield
    for model in MODELS:
        end = time.monotonic() + 60
        while (answer := Caller(server).infer(model, ONE * 3))[0] in (503, 504):
            assert time.monotonic() < end, answer
            time.sleep(0.02)
        assert answer[0] == 200 and (answer[1] == 6).all(), (model, answer)


def test_requests_deadline_applies_before_the_models(server, client):
    with ThreadPoolExecutor(1) as pool, Hold(server, "plain") as hold:
        blocking = pool.submit(client.infer, "plain", ONE, hold=hold.turn)
        wait_until(hold.began)
        status, text = client.infer("plain", ONE, timeout=50_000)
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
        assert Caller(server).infer("small", ONE)[0] == 503
        calls[0].cancel()
        wait_until(lambda: waiting(server, "small") == 1)
        late = pool.submit(Caller(server).infer, "small", ONE)
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

    callers = [Caller(server, protocol) for protocol in ("rest", "grpc") * 2]
    with ThreadPoolExecutor(4) as pool:
        sending = pool.map(send, callers)
        try:
            for _ in range(20):
                url = f"{server.url}/v2/repository/models/batched/load"
                assert requests.post(url, timeout=30).status_code == 200
        finally:
            stop.set()
        list(sending)
    assert not failures
