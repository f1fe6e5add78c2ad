"""A long stream to many clients: half of them leave, and nothing is left of it."""

import json
import os
import socket
import threading
from pathlib import Path

import grpc
import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.streams import TEXT, StreamedResponse, text_request, write_words
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, method

pytestmark = pytest.mark.long

LEAVES_AFTER = 100
PATIENCE_S = 3600
"""For the streams to end: 2.5 million chunks take minutes, and more beside other work."""

COROUTINES = """
import asyncio
from ksrv import BaseHandler


class Words(BaseHandler):
    async def inference(self, text):
        for _ in range(int(self.context.batch.requests[0].parameters["times"])):
            yield ["x "] * len(text)
"""


class Worker:
    """The server's worker process, as the kernel sees it."""

    def __init__(self, server: Server) -> None:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        self._folder = Path(f"/proc/{children[0]}")

    def threads(self) -> int:
        return len(list((self._folder / "task").iterdir()))

    def descriptors(self) -> tuple[int, int]:
        """Return how many shared blocks are open, and how many other descriptors."""
        blocks = others = 0
        for link in (self._folder / "fd").iterdir():
            try:
                is_block = os.readlink(link).startswith("/memfd:")
            except FileNotFoundError:  # closed since it was listed
                continue
            blocks, others = blocks + is_block, others + (not is_block)
        return blocks, others

    def resident(self) -> int:
        return int((self._folder / "statm").read_text().split()[1]) * 4096


def count_events(server: Server, chunks: int, leaves: bool) -> int:
    """Ask for a stream and return how many events came; a client that leaves closes after a few."""
    host, _, port = server.http.rpartition(":")
    body = json.dumps(text_request("x", times=chunks)).encode()
    head = (
        "POST /v2/models/words/infer HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    events, rest = 0, b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode() + body)
        while received := sock.recv(1 << 16):
            rest += received
            events += rest.count(b"data: ")
            rest = rest[-5:] if not rest.endswith(b"data: ") else b""
            if leaves and events >= LEAVES_AFTER:
                break
    return events


def count_answers(server: Server, chunks: int, leaves: bool) -> int:
    """The same over gRPC; a client that leaves cancels its call."""
    raw = (1).to_bytes(4, "little") + b"x"
    asked = infer_request("words", ("text", "BYTES", [1]), raw=[raw], parameters={"times": chunks})
    with grpc.insecure_channel(server.grpc) as channel:
        stub = method(channel, "ModelStreamInfer", kind="stream_stream")
        call, count = stub(iter([asked]), timeout=PATIENCE_S), 0
        for answer in call:
            assert not answer.error_message
            count += 1
            if leaves and count >= LEAVES_AFTER:
                call.cancel()
                break
    return count


def ask_together(server: Server, clients: int, chunks: int, count=count_events) -> None:
    """Let clients stream; every second client leaves early."""
    counted: list[tuple[bool, int]] = []

    def ask(leaves: bool) -> None:
        counted.append((leaves, count(server, chunks, leaves)))

    threads = [threading.Thread(target=ask, args=(bool(n % 2),)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [count for leaves, count in counted if not leaves] == [chunks] * (clients // 2)
    assert len(counted) == clients


@pytest.mark.parametrize(
    ("count", "kind", "executor"),
    [
        (count_events, "generators", "inline"), (count_events, "coroutines", "process"),
        (count_answers, "generators", "process"), (count_answers, "coroutines", "inline"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("clients", "chunks"), [(16, 1000), pytest.param(50, 100_000, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_long_stream_to_many_clients_leaves_nothing_behind(
    tmp_path, executor, kind, count, clients, chunks
):
    yaml = f"executor: {executor}\ntimeout_ms: {PATIENCE_S}000\n"
    if kind == "generators":
        batching = f"batching: {{max_batch_size: {clients}, max_delay_ms: 1000}}\n"
        write_words(tmp_path, "words", batching + yaml)
    else:
        write_model(tmp_path, "words", COROUTINES, TEXT + yaml)
    with Server(tmp_path) as server:
        worker = Worker(server)
        ask_together(server, clients, LEAVES_AFTER + 50, count)
        threads, resident = worker.threads(), worker.resident()
        blocks, others = worker.descriptors()
        ask_together(server, clients, chunks, count)
        ask_together(server, clients, LEAVES_AFTER + 50, count)
        # Threads and blocks of the pool are kept for as many streams as ran at a time. The first round
        # may have had fewer, so one may come for each client, where a leak has one for each stream.
        wait_until(lambda: worker.threads() <= threads + clients)
        wait_until(lambda: worker.descriptors()[0] <= blocks + clients, tell=lambda: server.log)
        wait_until(lambda: worker.descriptors()[1] <= others)
        assert worker.resident() < resident + 32 * 1024 * 1024
        asked = text_request("x", times=2)
        with StreamedResponse(server, "/v2/models/words/infer", asked) as found:
            assert len(list(found.events())) == 2
