"""Real clients over each protocol, which say of every call how it ended: answered, refused, lost or never."""

import contextlib
import http.client
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import grpc
import numpy as np

from ksrv.client import Client, ClientError, ConnectionFailed, DeadlineExceeded, StatusError
from ksrv.testing import Server
from tests.support.faults.patterns import Array, Pattern
from tests.support.wire.grpc_calls import infer_request, stub_infer

HEADER_LENGTH = "Inference-Header-Content-Length"
JSON_ELEMENTS = 1000
"""Patterns of more elements are sent as bytes; as JSON they would be megabytes of digits."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        kind: `answered` with a tensor, `refused` with a status, `lost` with its connection, or `silent` for as
            long as the client waited.
        answer: The tensor.
        status: The HTTP status, or the number of the gRPC status.
        text: The client's error for a call without an answer.
    """

    kind: Literal["answered", "refused", "lost", "silent"]
    answer: Array | None = None
    status: int = 0
    text: str = ""


def client_context(trusted: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(trusted))


def binary_body(pattern: Pattern) -> tuple[bytes, int]:
    """Return the body of a pattern in the binary extension, and the length of its JSON."""
    entry = {
        "name": "x",
        "datatype": "INT64",
        "shape": list(pattern.array.shape),
        "parameters": {"binary_data_size": pattern.array.nbytes},
    }
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return text + pattern.array.tobytes(), len(text)


def json_body(pattern: Pattern) -> bytes:
    entry = {"name": "x", "datatype": "INT64", "shape": list(pattern.array.shape)}
    return json.dumps({"inputs": [entry | {"data": pattern.array.tolist()}]}).encode()


def read_answer(content: bytes, header_length: str | None) -> Array:
    """Return the tensor of an answer's body.

    Raises:
        ValueError: The body is malformed, because it was changed on the way.
    """
    if header_length is None:
        output = json.loads(content)["outputs"][0]
        return np.array(output["data"], np.int64).reshape(output["shape"])
    text, tail = content[: int(header_length)], content[int(header_length) :]
    return np.frombuffer(tail, "<i8").reshape(json.loads(text)["outputs"][0]["shape"])


def judged(status: int, content: bytes, header_length: str | None) -> Outcome:
    if status != 200:
        return Outcome("refused", status=status, text=content[:200].decode("utf-8", "replace"))
    try:
        return Outcome("answered", read_answer(content, header_length))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        shown = f"{len(content)} bytes with a header of {header_length}, {content[:100]!r}"
        return Outcome("lost", text=f"an answer that cannot be read: {error!r}: {shown}")


class Caller(Protocol):
    """A client of one connection.

    Attributes:
        at_once: How many calls it makes side by side.
    """

    at_once: int

    def __init__(self, address: str, trusted: Path | None, timeout: float) -> None: ...

    def call(self, patterns: Sequence[Pattern]) -> list[Outcome]: ...

    def close(self) -> None: ...


class Http1Caller:
    """http.client: calls one after the other over a connection that stays while it can; see `Caller`."""

    at_once = 1

    def __init__(self, address: str, trusted: Path | None, timeout: float) -> None:
        self._address, self._trusted, self._timeout = address, trusted, timeout
        self._connection: http.client.HTTPConnection | None = None
        self._calls = 0

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, _, port = self._address.rpartition(":")
            if self._trusted is None:
                self._connection = http.client.HTTPConnection(
                    host, int(port), timeout=self._timeout
                )
            else:
                self._connection = http.client.HTTPSConnection(
                    host, int(port), timeout=self._timeout, context=client_context(self._trusted)
                )
        return self._connection

    def call(self, patterns: Sequence[Pattern]) -> list[Outcome]:
        return [self._one(pattern) for pattern in patterns]

    def _one(self, pattern: Pattern) -> Outcome:
        self._calls += 1
        form = ("binary", "chunked", "json")[self._calls % 3]
        if pattern.array.size > JSON_ELEMENTS and form == "json":
            form = "binary"
        headers = {}
        if form == "json":
            body = json_body(pattern)
        else:
            body, length = binary_body(pattern)
            headers[HEADER_LENGTH] = str(length)
        sent: Any = body
        if form == "chunked":
            sent = (body[at : at + 1000] for at in range(0, len(body), 1000))
        try:
            connection = self._connected()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # An answer may have come before all was sent.
                connection.request(
                    "POST", f"/v2/models/{pattern.model}/infer", sent, headers,
                    encode_chunked=form == "chunked",
                )  # fmt: skip
            answer = connection.getresponse()
            outcome = judged(answer.status, answer.read(), answer.getheader(HEADER_LENGTH))
        except TimeoutError as error:
            outcome = Outcome("silent", text=repr(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            outcome = Outcome("lost", text=repr(error))
        if outcome.kind != "answered":
            self.close()
        return outcome

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class LibraryCaller:
    """ksrv's client, without repetitions; see `Caller`."""

    at_once = 1

    def __init__(self, address: str, trusted: Path | None, timeout: float) -> None:
        self._url = f"{'http' if trusted is None else 'https'}://{address}"
        self._authority = None if trusted is None else str(trusted)
        self._timeout = timeout
        self._client = self._new()

    def _new(self) -> Client:
        return Client(self._url, ca=self._authority, timeout=self._timeout, retries=0)

    def call(self, patterns: Sequence[Pattern]) -> list[Outcome]:
        return [self._one(pattern) for pattern in patterns]

    def _one(self, pattern: Pattern) -> Outcome:
        try:
            found = self._client.infer(pattern.model, {"x": pattern.array})["y"]
        except DeadlineExceeded as error:
            return Outcome("silent", text=repr(error))
        except ConnectionFailed as error:
            return Outcome("lost", text=repr(error))
        except StatusError as error:
            return Outcome("refused", status=error.status, text=str(error))
        except (ClientError, ValueError, KeyError, TypeError) as error:
            return Outcome("lost", text=repr(error))
        if found.dtype != np.int64:
            return Outcome("lost", text=f"an answer of {found.dtype}")
        return Outcome("answered", np.asarray(found, np.int64))

    def close(self) -> None:
        self._client.close()
        self._client = self._new()


class GrpcCaller:
    """grpcio: the streams of one channel at a time, without its repetitions; see `Caller`."""

    at_once = 4

    def __init__(self, address: str, trusted: Path | None, timeout: float) -> None:
        self._address, self._trusted, self._timeout = address, trusted, timeout
        self._channel: Any = None

    def _connected(self) -> Any:
        if self._channel is None:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
            if self._trusted is None:
                self._channel = grpc.insecure_channel(self._address, options)
            else:
                credentials = grpc.ssl_channel_credentials(self._trusted.read_bytes())
                self._channel = grpc.secure_channel(self._address, credentials, options)
        return self._channel

    def call(self, patterns: Sequence[Pattern]) -> list[Outcome]:
        infer = stub_infer(self._connected())
        calls = [
            infer.future(
                infer_request(
                    pattern.model,
                    ("x", "INT64", list(pattern.array.shape)),
                    raw=[pattern.array.tobytes()],
                ),
                timeout=self._timeout,
            )
            for pattern in patterns
        ]
        outcomes = [self._outcome(call) for call in calls]
        if any(outcome.kind != "answered" for outcome in outcomes):
            self.close()
        return outcomes

    def _outcome(self, call: Any) -> Outcome:
        try:
            answer = call.result()
            if answer is None:  # grpcio: no DATA frame came before a status of OK
                return Outcome("lost", text="OK without a message")
            shape = list(answer.outputs[0].shape)
            return Outcome(
                "answered", np.frombuffer(answer.raw_output_contents[0], "<i8").reshape(shape)
            )
        except grpc.RpcError as error:
            code, number = error.code(), error.code().value[0]
            text = f"{code}: {error.details()}"
            if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                return Outcome("silent", status=number, text=text)
            # grpcio has statuses for connections that end. Only the server's statuses have the request's id.
            told = dict(error.trailing_metadata() or ())
            return Outcome(
                "refused" if "x-request-id" in told else "lost", status=number, text=text
            )
        except (ValueError, IndexError) as error:
            return Outcome("lost", text=repr(error))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


CALLERS: dict[str, type[Caller]] = {
    "http1": Http1Caller,
    "library": LibraryCaller,
    "grpc": GrpcCaller,
}
"""The clients by protocol."""


def addresses(server: Server) -> dict[str, str]:
    return {protocol: server.grpc if protocol == "grpc" else server.http for protocol in CALLERS}
