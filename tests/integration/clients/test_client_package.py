"""`ksrv.client` against real servers: REST and gRPC, blocking and asyncio, with token and TLS."""

import asyncio
import threading

import cv2
import numpy as np
import pytest

from ksrv.client import (
    AccessDenied,
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_all, write_mean, write_model, write_text


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("client-models")
    write_all(root)
    write_mean(root)
    write_text(root)
    write_model(
        root, "narrow", "import time\n\ndef inference(x): time.sleep(0.3); return {'y': x}\n",
        "inputs: [{name: x, datatype: FP32, shape: [-1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1]}]\n"
        "queue_size: 1\nbatching: {max_batch_size: 1}\nwarmup: false\n",
    )  # fmt: skip
    with Server(root) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def url(request, server):
    return server.url if request.param == "http" else f"grpc://{server.grpc}"


@pytest.fixture
def client(url):
    with Client(url) as made:
        yield made


def test_server_and_models_are_described(client):
    assert client.metadata()["name"] == "ksrv"
    assert client.live() and client.ready() and client.ready("double")
    assert client.metadata("double")["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    ]
    assert {"name": "double", "version": "", "state": "READY", "reason": ""} in client.index()


def test_numbers(client):
    answer = client.infer("double", [1, 2, 3, 4], request_id="seven")
    np.testing.assert_array_equal(answer["y"], np.float32([[2, 4, 6, 8]]))
    assert (answer.model_name, answer.id) == ("double", "seven")
    many = np.arange(400_000, dtype=np.float64).reshape(-1, 4)
    np.testing.assert_array_equal(
        client.infer("echo", {"x": many}, outputs=["y"])["y"], many.astype(np.float32)
    )


def test_unknown_output_names_those_of_the_answer(client):
    with pytest.raises(KeyError, match="the answer has no output 'z'; its outputs are y"):
        client.infer("double", [1, 2, 3, 4])["z"]


def test_images_are_a_batch(client, tmp_path):
    assert cv2.imwrite(str(tmp_path / "a.png"), np.full((9, 7, 3), 10, np.uint8))
    assert cv2.imwrite(str(tmp_path / "b.png"), np.full((20, 30, 3), 20, np.uint8))
    files = [tmp_path / "a.png", (tmp_path / "b.png").read_bytes()]
    answer = client.infer("mean", files)
    np.testing.assert_array_equal(answer["mean"], np.float32([[10] * 3, [20] * 3]))
    assert client.infer("mean", files[0])["mean"].shape == (1, 3)


def test_texts_and_parameters(client):
    answer = client.infer(
        "text", ["a", "", "ü"], parameters={"a": 1, "b": "c", "d": 0.5, "e": True}
    )
    assert answer["y"].tolist() == [b"a", b"", "ü".encode()]


def test_timing_and_statistics(client, url):
    answer = client.infer("double", [1, 1, 1, 1])
    if url.startswith("http"):
        assert answer.timing["inference"] >= 0
    (stats,) = client.statistics("double")
    assert stats["name"] == "double" and stats["inference_stats"]["success"]["count"] >= 1
    assert {"double", "echo"} <= {one["name"] for one in client.statistics()}


def test_load_and_unload(client):
    client.unload("echo")
    assert client.ready("echo") is False
    with pytest.raises(Unavailable, match="echo"):
        client.infer("echo", [[1.0]], timeout=0.5)
    client.load("echo")
    assert client.ready("echo")


def test_errors_have_status_and_text(client):
    with pytest.raises(NotFound, match="nope"):
        client.infer("nope", [1])
    with pytest.raises(InvalidRequest, match="'z'"):
        client.infer("double", {"z": [1]})
    with pytest.raises(DeadlineExceeded):
        client.infer("slow", [1, 1, 1, 1], timeout=0.05)
    with pytest.raises(NotFound):
        client.metadata("double", "7")


def test_a_full_queue_is_waited_for(url):
    """Six threads, one place in the queue: without repeats some are refused, with them none."""

    def ask(client, answers):
        try:
            answers.append(client.infer("narrow", [1.0])["y"].tolist())
        except ClientError as error:
            answers.append(error)

    for retries in (0, 20):
        answers = []
        with Client(url, retries=retries) as client:
            client.infer("narrow", [1.0])
            threads = [threading.Thread(target=ask, args=(client, answers)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        refused = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert bool(refused) == (retries == 0), answers
        assert all(error.retry_after == 1 for error in refused)
        assert len(refused) + answers.count([1.0]) == 6


DEADLY = """
import os
from pathlib import Path

def inference(x):
    with (Path(__file__).parent / "calls").open("a") as calls:
        calls.write(f"{os.getpid()}\\n")
    os._exit(3)
"""


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_call_that_ends_its_worker_is_made_once(tmp_path, scheme, retries):
    folder = write_model(
        tmp_path, "deadly", DEADLY,
        "inputs: [{name: x, datatype: FP32, shape: [-1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1]}]\nwarmup: false\n",
    )  # fmt: skip
    with Server(tmp_path, workers=3) as server:
        url = server.url if scheme == "http" else f"grpc://{server.grpc}"
        with Client(url, retries=retries) as client, pytest.raises(ConnectionFailed):
            client.infer("deadly", [1.0])  # on the connection that brought the metadata
    assert len((folder / "calls").read_text().splitlines()) == 1


def test_threads_share_a_client(client):
    wrong = []

    def ask(number):
        for step in range(30):
            value = float(number * 100 + step)
            if client.infer("double", [value] * 4)["y"][0, 0] != 2 * value:
                wrong.append(value)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tasks_share_an_asyncio_client(url):
    async def ask_all():
        async with AsyncClient(url) as client:
            await client.wait_ready()
            assert await client.live() and await client.ready("double")
            asked = [client.infer("double", [float(number)] * 4) for number in range(40)]
            answers = await asyncio.gather(*asked)
            assert [answer["y"][0, 0] for answer in answers] == [2.0 * n for n in range(40)]
            with pytest.raises(DeadlineExceeded):
                await client.infer("slow", [1, 1, 1, 1], timeout=0.05)
            with pytest.raises(NotFound):
                await client.metadata("nope")
            assert (await client.metadata())["name"] == "ksrv"
            await client.unload("text")
            await client.load("text")
            assert {entry["name"] for entry in await client.index()} >= {"text"}
            assert (await client.statistics("double"))[0]["name"] == "double"

    asyncio.run(ask_all())


def test_token_and_tls(tmp_path):
    models = write_all(tmp_path / "models").parent / "models"
    key, cert = self_signed(tmp_path / "tls")
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    settings = {"tls_cert": str(cert), "tls_key": str(key), "token_file": str(tokens)}
    with Server(models, **settings) as server:
        for url in (f"https://{server.http}", f"grpcs://{server.grpc}"):
            with Client(url, token="secret", ca=str(cert)) as client:
                assert client.infer("double", [1, 1, 1, 1])["y"].tolist() == [[2.0] * 4]
            with Client(url, ca=str(cert)) as client, pytest.raises(AccessDenied):
                client.infer("double", [1, 1, 1, 1])
            with Client(url, token="secret") as client, pytest.raises(ConnectionFailed):
                client.metadata(timeout=20)

        async def ask():
            async with AsyncClient(f"https://{server.http}", token="secret", ca=str(cert)) as one:
                return await one.ready()

        assert asyncio.run(ask())
