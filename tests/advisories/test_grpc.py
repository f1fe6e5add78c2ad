"""Attacks over gRPC and HTTP/2.

Floods are in tests/integration/grpc/test_hostile_peers.py, lists of headers in tests/integration/http2/test_header_bombs.py.
"""

import contextlib
import json
import re
import socket
import struct
import threading

import grpc
import pytest

from ksrv.protocol.protobuf import HEALTH, INFERENCE, REFLECTION
from ksrv.testing import Server
from tests.advisories.conftest import unharmed
from tests.support.missing_tools import need_http2
from tests.support.wire.grpc_calls import connect, infer_request, method, row_request, stub_infer
from tests.support.wire.http2_wire import (
    END_HEADERS,
    GRPC_HEAD,
    HEADERS,
    PING,
    SETTINGS,
    Wire,
    field,
    frame,
)
from tests.support.wire.http_reader import double_body, infer_message, open_connection, read_answer

pytestmark = pytest.mark.long

INFER = f"/{INFERENCE}/ModelInfer"
INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 3, 8
ALTSVC, ORIGIN, PRIORITY, PRIORITY_UPDATE = 10, 12, 2, 16


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    need_http2()


MALFORMED = [
    frame(kind, 0, stream, bytes(size))
    for kind, stream, size in (
        (PING, 0, 7),
        (SETTINGS, 0, 5),
        (PRIORITY, 1, 4),
        (8, 0, 3),
        (ALTSVC, 0, 1),
        (ORIGIN, 0, 1),
        (PRIORITY_UPDATE, 0, 3),
        (0xF0, 0, 1),
    )
]
"""Frames of a wrong size. Each is a connection error or an unknown frame."""


@pytest.mark.parametrize("first", range(len(MALFORMED)))
def test_frames_after_a_connection_error_end_no_worker(server: Server, first: int) -> None:
    """CVE-2026-27135: libnghttp2 read on after the error, and a second malformed frame met an assertion."""
    with unharmed(server):
        for second in MALFORMED:
            with Wire(server.grpc) as wire, contextlib.suppress(ConnectionError):
                sent = MALFORMED[first] + second * 3
                wire.socket.sendall(sent + frame(PING, 0, 0, bytes(8)))
                wire.socket.shutdown(socket.SHUT_WR)
                wire.until_closed()


@pytest.mark.parametrize("value", ["a\r\nx-admin: 1", "a\nb", "a\0b", "a\rb"])
def test_line_ends_in_a_header_end_its_stream(server: Server, value: str) -> None:
    """CVE-2025-57804: a proxy wrote the value of HTTP/2 into a head of HTTP/1.1."""
    with unharmed(server), Wire(server.grpc) as wire:
        names = GRPC_HEAD | {":path": INFER, "x-a": value}
        block = b"".join(field(*pair) for pair in names.items())
        wire.socket.sendall(frame(HEADERS, END_HEADERS, 1, block))
        ended = wire.until_ended(1)
        assert 1 in wire.resets or b":status: 400" in ended, ended


GROUPS = b"\x0b" * 200_000
"""The beginnings of unknown groups, each in another."""
METHODS = [f"/{INFERENCE}/{name}" for name in ("ModelInfer", "ServerLive", "ModelMetadata", "RepositoryModelLoad", "ModelStatistics")]  # fmt: skip
METHODS += [f"/{HEALTH}/Check", f"/{REFLECTION}/ServerReflectionInfo"]


@pytest.mark.parametrize("path", METHODS)
def test_nested_groups_are_an_invalid_message(server: Server, path: str) -> None:
    """CVE-2025-4565, CVE-2024-7254: parsers called themselves for each group."""
    groups = GROUPS if path == INFER else GROUPS[:60_000]
    with unharmed(server), Wire(server.grpc) as wire:
        stream = wire.call(path)
        wire.send(stream, b"\0" + len(groups).to_bytes(4, "big") + groups, last=True)
        ended = wire.until_ended(stream)
        assert re.search(rb"grpc-status: (3|12|13)\b", ended), ended
        assert b"grpc-status: 13" not in ended


def test_message_that_inflates_above_the_limit_is_refused(server: Server) -> None:
    """CVE-2024-37168: the limit was checked before a message was decompressed, or after it was in memory."""
    made = infer_request("echo", ("x", "FP32", [1, 16 << 20]), raw=[bytes(64 << 20)])
    with unharmed(server) as answers, connect(server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            stub_infer(channel)(made, timeout=60, compression=grpc.Compression.Gzip)
        answers.append(refused.value.details())
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--limits-" in refused.value.details()


def test_streams_that_end_by_errors_and_cancellations(server: Server) -> None:
    """triton#8708: an error of a stream used what the end of the stream had freed."""
    wrong = infer_request("double", ("x", "FP32", [1, 5]), raw=[bytes(20)])
    with unharmed(server), connect(server.grpc) as channel:
        stub = method(channel, "ModelStreamInfer", kind="stream_stream")
        for turn in range(200):
            requests = [wrong, row_request("double"), wrong][turn % 3 :]
            stream = stub(iter(requests), timeout=60, metadata=[("triton_grpc_error", "true")])
            if turn % 2:
                stream.cancel()
            with contextlib.suppress(grpc.RpcError):
                for _ in stream:
                    pass


def test_clients_that_leave_mix_up_no_answers(server: Server) -> None:
    """triton#8733, triton#8768: a descriptor was used after it was closed, and a closed peer ended the process."""
    stop = threading.Event()

    def leave() -> None:
        reset = struct.pack("ii", 1, 0)
        slow = infer_message("slow")
        while not stop.is_set():
            for size in (30, len(slow) - 1, len(slow)):
                with contextlib.suppress(OSError), open_connection(server.http) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    connection.sendall(slow[:size])

    leavers = [threading.Thread(target=leave) for _ in range(4)]
    with unharmed(server):
        for thread in leavers:
            thread.start()
        try:
            for turn in range(200):
                values = [turn, turn + 0.25, turn + 0.5, turn + 0.75]
                with open_connection(server.http) as connection:
                    connection.sendall(infer_message("double", double_body(values)))
                    answer = read_answer(connection)
                assert answer.status == 200, answer
                [output] = json.loads(answer.body)["outputs"]
                assert output["data"] == [2 * value for value in values]
        finally:
            stop.set()
            for thread in leavers:
                thread.join()
