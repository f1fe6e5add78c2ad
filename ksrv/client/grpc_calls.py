"""Sends operations as gRPC calls: serializes requests, reads answers, and converts grpcio's errors.

grpcio is imported when a channel is made, and protobuf with the first message, because clients of REST need neither.
"""

import struct
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ksrv.client.errors import (
    NAMES_AN_AUTHORITY,
    NOTHING_LISTENS,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    StreamFailed,
    status_error,
)
from ksrv.client.operations import Document, InferResult, Operation, check_token
from ksrv.client.protobuf import decode, encode
from ksrv.client.retries import retry_after
from ksrv.client.tensors import Array
from ksrv.client.tensors import decode as decode_tensor

SERVICE = "inference.GRPCInferenceService"

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # grpcio would otherwise use one connection for all channels of the process to the same server.
    ("grpc.use_local_subchannel_pool", 1),
]

_STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "OUT_OF_RANGE": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "RESOURCE_EXHAUSTED": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}


def make_channel(
    package: Any, url: str, ca: str | None, certificate: tuple[str, str] | None
) -> Any:
    """Return a channel of grpcio.

    Args:
        package: `grpc`, or `grpc.aio` for asyncio.
        url: grpc://HOST:PORT, or grpcs:// with TLS.
        ca: A file (PEM) of the authorities to trust instead of the system's, or None.
        certificate: Files (PEM) of the client's certificate chain and key, or None.

    Raises:
        ValueError: The URL has no port.
        OSError: A file cannot be read.
    """
    import grpc

    parts = urlsplit(url)
    if not parts.hostname or not parts.port or parts.path.rstrip("/"):
        raise ValueError(f"expected grpc://HOST:PORT, got {url!r}")
    if parts.scheme == "grpc":
        return package.insecure_channel(parts.netloc, options=_OPTIONS)
    chain, key = (Path(name).read_bytes() for name in certificate) if certificate else (None, None)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=None if ca is None else Path(ca).read_bytes(),
        private_key=key,
        certificate_chain=chain,
    )
    return package.secure_channel(parts.netloc, credentials, options=_OPTIONS)


class GrpcTransport:
    """Sends operations over gRPC.

    Args:
        package: The module of grpcio: "grpc", or "grpc.aio" for asyncio.
        token: The bearer token, or None.
        ca: See `make_channel`.
        certificate: See `make_channel`.
    """

    def __init__(
        self,
        package: str,
        url: str,
        token: str | None,
        ca: str | None,
        certificate: tuple[str, str] | None,
    ) -> None:
        check_token(token)
        self.channel = make_channel(import_module(package), url, ca, certificate)
        self._address = urlsplit(url).netloc
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._calls: dict[str, Callable[..., Any]] = {}

    def call_of(self, name: str) -> Callable[..., Any]:
        """Return the function for a unary call such as "ModelInfer": from bytes to bytes, or to an awaitable."""
        call = self._calls.get(name)
        if call is None:
            made = self.channel.unary_unary(f"/{SERVICE}/{name}")
            call = self._calls[name] = partial(made, metadata=self._metadata)
        return call

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        seconds = max(0.0, deadline - time.monotonic())
        with self.converted_errors():
            answer = self.call_of(operation.name)(message_of(operation), timeout=seconds)
            return answer_of(operation, answer if isinstance(answer, bytes) else await answer)

    async def stream(
        self, operation: Operation, deadline: float
    ) -> AsyncGenerator[InferResult, None]:
        """Yield the parts of the answer to an operation."""
        made = self.channel.stream_stream(f"/{SERVICE}/{operation.name}")
        seconds = max(0.0, deadline - time.monotonic())
        call = made(iter([message_of(operation)]), metadata=self._metadata, timeout=seconds)
        try:
            with self.converted_errors():
                if hasattr(call, "__aiter__"):
                    async for content in call:
                        yield answer_of(operation, content)
                else:
                    for content in call:
                        yield answer_of(operation, content)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channel."""
        closing = self.channel.close()
        if closing is not None:
            await closing

    @contextmanager
    def converted_errors(self) -> Iterator[None]:
        """Raise the client's exceptions for grpcio's."""
        import grpc

        try:
            yield
        except grpc.RpcError as error:
            raise error_of(error, self._address) from error


def message_of(operation: Operation) -> bytes:
    """Return the serialized request of an operation."""
    values: dict[str, Any]
    if operation.name in ("ModelInfer", "ModelStreamInfer"):
        values = {
            "model_name": operation.model,
            "model_version": operation.version,
            "id": operation.id,
            "parameters": operation.parameters or {},
            "inputs": [
                {"name": entry.name, "datatype": entry.datatype, "shape": entry.shape}
                for entry in operation.inputs
            ],
            "outputs": [
                {"name": name, "parameters": parameters} for name, parameters in operation.outputs
            ],
            "raw_input_contents": [
                entry.blocks[0] if len(entry.blocks) == 1 else b"".join(entry.blocks)
                for entry in operation.inputs
            ],
        }
    else:  # some requests have the field `name`, others `model_name`; `encode` ignores the other
        values = {
            "name": operation.model,
            "model_name": operation.model,
            "version": operation.version,
        }
    return encode(operation.name, values)


def answer_of(operation: Operation, content: bytes) -> Document:
    """Return the answer to an operation; for an inference an `InferResult`.

    Raises:
        StreamFailed: The answer is the error of a stream.
        ClientError: The answer cannot be read.
    """
    try:
        document = decode(operation.name, content)
        if operation.name == "ModelStreamInfer":
            if document["error_message"]:
                raise StreamFailed(document["error_message"])
            return _infer_result(document["infer_response"])
        if operation.name == "ModelInfer":
            return _infer_result(document)
    except (ValueError, TypeError, struct.error) as error:
        raise ClientError(f"the answer to {operation.name} cannot be read: {error}") from error
    return document["models"] if operation.name == "RepositoryIndex" else document


def _infer_result(document: dict[str, Any]) -> InferResult:
    blocks = document["raw_output_contents"]
    if len(blocks) != len(document["outputs"]):
        raise ValueError(f"{len(document['outputs'])} outputs have {len(blocks)} raw contents")
    outputs: dict[str, Array] = {}
    for entry, block in zip(document["outputs"], blocks, strict=True):
        outputs[entry["name"]] = decode_tensor(entry["datatype"], entry["shape"], memoryview(block))
    return InferResult(outputs, document)


_FAULTS = (
    ("Connection refused", NOTHING_LISTENS),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; begin the URL with grpc:// and not grpcs://"),
    ("CERTIFICATE_VERIFY_FAILED", f"its certificate is not accepted; {NAMES_AN_AUTHORITY}"),
    (
        "Socket closed",
        "it closed the connection; if the server has TLS, begin the URL with grpcs:// and not grpc://",
    ),
    ("DNS", "no host has this name; check the server's URL"),
)
"""Parts of grpcio's texts for failed connections, and the client's error text for each."""


def _in_words(text: str) -> str:
    """Return grpcio's error text, with the client's text for the fault if it is known."""
    words = next((words for part, words in _FAULTS if part in text), None)
    return text if words is None else f"{words} ({text})"


def error_of(error: Any, address: str) -> ClientError:
    """Return the client's exception for an `RpcError` of grpcio.

    Args:
        address: The server's address, for the text.
    """
    code = error.code().name
    text = str(error.details() or code)
    trailers = {str(key).lower(): value for key, value in error.trailing_metadata() or ()}
    pause = retry_after(trailers.get("retry-after"))
    # The code is the same for a busy server and for a message that is too large. Only the former has a Retry-After.
    if pause is not None and code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"):
        return status_error(HTTPStatus.SERVICE_UNAVAILABLE, text, pause)
    if code == "UNAVAILABLE":  # also grpcio's code for a failed connection
        return ConnectionFailed(f"no answer from {address}: {_in_words(text)}")
    if code == "DEADLINE_EXCEEDED":  # of the client or of the server: the code does not tell
        return DeadlineExceeded(f"no answer from {address} in time: {text}")
    return status_error(_STATUSES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR), text)
