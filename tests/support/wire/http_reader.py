"""Reading HTTP answers off a raw socket, byte for byte."""

import contextlib
import json
import re
import socket
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as the end."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            received += piece
    return bytes(received)


def parse_answers(received: bytes) -> list[Answer]:
    """Every answer in `received`; each must announce its length, and nothing may be left over."""
    answers = []
    while received:
        head, separator, rest = received.partition(b"\r\n\r\n")
        assert separator, f"no end of head in {received[:200]!r}"
        lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split()
        assert version == "HTTP/1.1"
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers["content-length"])
        assert len(rest) >= length
        answers.append(Answer(int(status), headers, rest[:length]))
        received = rest[length:]
    return answers


def read_message(
    connection: socket.socket, rest: bytes = b"", head_piece: int = 65536, has_body: bool = True
) -> tuple[bytes, bytes, bytes]:
    """One answer that announces its length, or has no body: an interim answer, a 204, or an answer to HEAD.

    Args:
        connection: The connection to read.
        rest: The bytes that were read already.
        head_piece: The most that is read at once while the head is not whole; with 1, nothing after
            the answer is taken from the connection.
        has_body: False for the answer to a HEAD, whose length is that of a body that does not come.

    Returns:
        The head without its empty line, the body, and what came behind the answer.

    Raises:
        EOFError: The connection ended before.
    """
    data = rest
    while b"\r\n\r\n" not in data:
        data += _piece(connection, head_piece, data)
    head, _, data = data.partition(b"\r\n\r\n")
    if not has_body or re.match(rb"HTTP/1\.1 (1\d\d|204) ", head):
        return head, b"", data
    announced = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    assert announced, f"no length in {head!r}"
    length = int(announced[1])
    body = bytearray(data)
    while len(body) < length:
        body += _piece(connection, length - len(body), head)
    return head, bytes(body[:length]), bytes(body[length:])


def read_answer(connection: socket.socket) -> Answer:
    """One answer; the connection stays open, and later bytes stay in it."""
    head, body, _ = read_message(connection, head_piece=1)
    (answer,) = parse_answers(head + b"\r\n\r\n" + body)
    return answer


def _piece(connection: socket.socket, most: int, received: bytes) -> bytes:
    piece = connection.recv(most)
    if not piece:
        raise EOFError(received)
    return piece


def open_connection(address: str, timeout: float = 20) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)


def infer_head(model: str, length: int, *fields: str) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: ksrv", f"Content-Length: {length}"]
    return ("\r\n".join([*lines, *fields]) + "\r\n\r\n").encode("latin-1")


def double_body(values: Any = (1.0, 2.0, 3.0, 4.0)) -> bytes:
    """A JSON infer request for the model `double`."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": list(values)}
    return json.dumps({"inputs": [entry]}).encode()


def infer_message(model: str = "double", body: bytes | None = None, *fields: str) -> bytes:
    content = double_body() if body is None else body
    return infer_head(model, len(content), *fields) + content
