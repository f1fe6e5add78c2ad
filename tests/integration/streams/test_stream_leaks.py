"""A long stream to many clients, half of whom leave: nothing is left of it."""

import json
import socket
import threading
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.streams import StreamedResponse, text_request, write_words
from tests.support.wait_until import wait_until

CLIENTS = 50
LEAVES_AFTER = 500


class Worker:
    """The server's worker process, as the kernel sees it."""

    def __init__(self, server: Server) -> None:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        self._folder = Path(f"/proc/{children[0]}")

    def threads(self) -> int:
        return len(list((self._folder / "task").iterdir()))

    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

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
    with socket.create_connection((host, int(port)), timeout=580) as sock:
        sock.sendall(head.encode() + body)
        while received := sock.recv(1 << 16):
            rest += received
            events += rest.count(b"data: ")
            rest = rest[-5:] if not rest.endswith(b"data: ") else b""
            if leaves and events >= LEAVES_AFTER:
                break
    return events


def ask_together(server: Server, chunks: int) -> None:
    """Let all clients stream, every second of whom leaves early."""
    counted: list[tuple[bool, int]] = []

    def ask(leaves: bool) -> None:
        counted.append((leaves, count_events(server, chunks, leaves)))

    threads = [threading.Thread(target=ask, args=(bool(n % 2),)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(580)
    assert [count for leaves, count in counted if not leaves] == [chunks] * (CLIENTS // 2)
    assert len(counted) == CLIENTS


@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("chunks", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_a_long_stream_to_many_clients_leaves_nothing_behind(tmp_path, executor, chunks):
    batching = f"batching: {{max_batch_size: {CLIENTS}, max_delay_ms: 1000}}\n"
    write_words(tmp_path, "words", f"executor: {executor}\n{batching}timeout_ms: 900000\n")
    with Server(tmp_path) as server:
        worker = Worker(server)
        ask_together(server, 1000)
        threads, descriptors, resident = worker.threads(), worker.descriptors(), worker.resident()
        ask_together(server, chunks)
        wait_until(lambda: worker.threads() <= threads)
        wait_until(lambda: worker.descriptors() <= descriptors + 8)  # blocks shared with a process
        assert worker.resident() < resident + 32 * 1024 * 1024
        with StreamedResponse(server, "/v2/models/words/infer", text_request("a b")) as found:
            assert len(list(found.events())) == 2
