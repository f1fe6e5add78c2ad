"""Reading HTTP answers off a raw socket, byte for byte."""

import json
import socket
from dataclasses import dataclass


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as the end."""
    received = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


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


def read_answer(connection: socket.socket) -> Answer:
    """One answer; the connection stays open."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the connection ended in {head!r}"
        head += byte
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = b""
    while len(body) < length:
        piece = connection.recv(length - len(body))
        assert piece, "the connection ended in a body"
        body += piece
    (answer,) = parse_answers(head + body)
    return answer


def infer_head(model: str, length: int, *fields: str) -> bytes:
    """The head of an infer request with a body of `length` bytes."""
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: ksrv", f"Content-Length: {length}"]
    return ("\r\n".join([*lines, *fields]) + "\r\n\r\n").encode("latin-1")


def double_body(values=(1.0, 2.0, 3.0, 4.0)) -> bytes:
    """A JSON infer request for the model `double`."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": list(values)}
    return json.dumps({"inputs": [entry]}).encode()


def infer_message(model: str = "double", body: bytes | None = None, *fields: str) -> bytes:
    """A whole infer request."""
    content = double_body() if body is None else body
    return infer_head(model, len(content), *fields) + content
