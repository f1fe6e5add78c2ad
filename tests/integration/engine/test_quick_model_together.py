"""Many clients at once on a model so quick that its handler runs on the I/O threads themselves.

There requests are pushed together, run as one batch on a claimed slot and answered in one write; each
client must still get the rows that it asked for, in its order, and only its errors.
"""

import json
import socket
import threading
import time

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import ECHO, write_model

WIDTH = 4
CLIENTS, REQUESTS = 8, 400


@pytest.fixture(scope="module", params=["alone", "batched"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("quick")
    batching = (
        "batching: {max_batch_size: 8, max_delay_ms: 0}\n" if request.param == "batched" else ""
    )
    write_model(
        root, "echo", ECHO,
        f"{batching}inputs: [{{name: x, datatype: FP32, shape: [-1, {WIDTH}]}}]\n"
        f"outputs: [{{name: y, datatype: FP32, shape: [-1, {WIDTH}]}}]\n",
    )  # fmt: skip
    with Server(root, grpc="off") as running:
        running.joins = request.param == "batched"
        yield running


def message(values, name="x"):
    entry = {"name": name, "shape": list(values.shape), "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": values.nbytes}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
    body = head + values.tobytes()
    return (
        f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
    ).encode() + body


def answers(client, count):
    """Yield status and body of the answers on a connection."""
    reader = client.makefile("rb")
    for _ in range(count):
        status = int(reader.readline().split()[1])
        length = 0
        while (line := reader.readline().strip().lower()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        yield status, reader.read(length)


def executions(server):
    """How many requests were answered, and by how many runs of the handler."""
    found = requests.get(f"{server.url}/v2/models/echo/stats", timeout=30).json()["model_stats"][0]
    return found["inference_stats"]["success"]["count"], found["execution_count"]


def converse(server, number, ahead, faults):
    """Send requests, `ahead` of them before their answers are read, and check each answer."""
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as client:
        for start in range(0, REQUESTS, ahead):
            sent, messages = [], []
            for place in range(start, start + ahead):
                rows = 1 + place % 3
                values = np.full((rows, WIDTH), number * 10_000 + place, "<f4")
                wrong = place % 17 == 5
                sent.append((values, wrong))
                messages.append(message(values, name="other" if wrong else "x"))
            client.sendall(b"".join(messages))
            for (values, wrong), (status, body) in zip(sent, answers(client, ahead), strict=True):
                if wrong and not (status == 400 and b"other" in body):
                    faults.append((number, status, body))
                if not wrong and not (status == 200 and body.endswith(values.tobytes())):
                    faults.append((number, status, body[:200]))


@pytest.mark.parametrize("ahead", [1, 8], ids=["one by one", "pipelined"])
def test_joined_clients_get_the_right_answers_in_order(server, ahead):
    faults = []
    answered, ran = executions(server)
    threads = [
        threading.Thread(target=converse, args=(server, number, ahead, faults))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
    right = sum(place % 17 != 5 for place in range(REQUESTS))
    give_up = time.monotonic() + 60
    while (now := executions(server))[0] < answered + CLIENTS * right:
        assert time.monotonic() < give_up, now  # a batch is counted behind its answers
    assert now[0] == answered + CLIENTS * right
    answered, ran = now[0] - answered, now[1] - ran
    if server.joins and ahead > 1:
        assert ran < answered
    if not server.joins:
        assert ran == answered
