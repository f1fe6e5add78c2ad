"""A server that could not run for a while does not blame its clients: received data is read first."""

import contextlib
import os
import signal
import time

import pytest

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http_reader import double_body, open_connection, read_message

CLIENTS = 80
"""More than an I/O thread gets in one round of epoll."""

BODY = double_body() + b" " * 200_000
HEAD = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
CHUNKED = "POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

MESSAGES = {
    "nothing": (b"", HEAD.encode() + BODY),
    "half a head": (HEAD.encode()[:40], HEAD.encode()[40:] + BODY),
    "a head": (HEAD.encode(), BODY),
    "half a chunk": (
        CHUNKED.encode() + b"%x\r\n{" % len(double_body()),
        double_body()[1:] + b"\r\n0\r\n\r\n",
    ),
}


@pytest.mark.parametrize(("before", "behind"), MESSAGES.values(), ids=MESSAGES)
def test_bytes_received_while_the_server_slept_are_in_time(tmp_path, before, behind):
    write_double(tmp_path)
    settings = {"head_timeout": 1, "transfer_grace": 1, "grpc": "off"}
    with Server(tmp_path, **settings) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_connection(server.http, 60)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(before)
        # the server has accepted and seen the other connections
        with open_connection(server.http) as last:
            last.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            read_message(last)
        os.killpg(server.pid, signal.SIGSTOP)
        try:
            for client in clients:
                client.sendall(behind)
            time.sleep(1.5)
        finally:
            os.killpg(server.pid, signal.SIGCONT)
        for client in clients:
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
