"""The client whose methods wait for their answers."""

import time
from typing import Any
from urllib.parse import urlsplit

from ksrv.client.errors import ClientError, ConnectionFailed, DeadlineExceeded, Unavailable
from ksrv.client.grpc_calls import GrpcChannel
from ksrv.client.grpc_calls import answer_of as grpc_answer_of
from ksrv.client.http1.blocking import ConnectionPool
from ksrv.client.http1.messages import make_target
from ksrv.client.operations import (
    Document,
    InferResult,
    Operation,
    Operations,
    Outputs,
    Parameters,
    Steps,
)
from ksrv.client.rest import answer_of, http_request
from ksrv.client.retries import Retries

SCHEMES = ("http", "https", "grpc", "grpcs")

_POLL_SECONDS = 0.1


def with_scheme(url: str) -> str:
    """Return a URL with its scheme, http unless it says another.

    Args:
        url: The URL.

    Raises:
        ValueError: Its scheme is none of the client's.
    """
    full = url if "://" in url else f"http://{url}"
    if urlsplit(full).scheme not in SCHEMES:
        raise ValueError(f"expected a URL with one of {', '.join(SCHEMES)}, got {url!r}")
    return full


class RestTransport:
    """Carries operations over REST.

    Args:
        url: The server's URL.
        token: The bearer token, or None.
        ca: A file of authorities, or None.
        certificate: Files of the client's certificate and key, or None.
    """

    def __init__(
        self, url: str, token: str | None, ca: str | None, certificate: tuple[str, str] | None
    ) -> None:
        self._pool = ConnectionPool(make_target(url, token, ca, certificate))

    def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        return answer_of(operation, self._pool.send(http_request(operation), deadline))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class GrpcTransport(GrpcChannel):
    """Carries operations over gRPC."""

    library = "grpc"

    def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        with self.telling_errors():
            return grpc_answer_of(operation, self.begin(operation, deadline))

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class Client:
    """A client whose methods wait for their answers; any number of threads may share one.

    Connections are kept and used again. A call that finds the server busy (429, 503) is made again
    after the time that the server names, within the call's timeout.

    Args:
        url: http://HOST:PORT or https://, for REST; grpc://HOST:PORT or grpcs://, for gRPC. A path
            behind HOST:PORT stands before every route of REST.
        token: Sent as bearer token with every call.
        ca: A file (PEM) of the authorities to trust with TLS, instead of the system's.
        certificate: Files (PEM) of the client's certificate chain and key, for servers that ask.
        timeout: Seconds that a call may take, repeats included, unless it says its own.
        retries: How often a call is made again while the server is busy; 0 never.

    Raises:
        ValueError: The URL or the token cannot be.
        OSError: A file cannot be read.
        ImportError: The URL needs grpcio, which is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca: str | None = None,
        certificate: tuple[str, str] | None = None,
        timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        self.url = with_scheme(url)
        self.timeout = timeout
        self._operations = Operations()
        self._retries = Retries(retries)
        kind = GrpcTransport if self.url.startswith("grpc") else RestTransport
        self._transport: RestTransport | GrpcTransport = kind(self.url, token, ca, certificate)

    def infer(
        self,
        model: str,
        inputs: Any,
        *,
        version: str = "",
        outputs: Outputs | None = None,
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> InferResult:
        """Ask a model.

        Args:
            model: Its name.
            inputs: Values by input name, or the value alone for a model with one input. A value is
                an array, nested lists of numbers, or for images and texts bytes, `pathlib.Path`,
                `str`, or a list of them for a batch. One row needs no batch dimension.
            version: The model's version; by default the highest.
            outputs: Names of the outputs wanted, or a mapping of them to parameters such as
                `{"probabilities": {"classification": 3}}`; by default all.
            parameters: Of the request, for the handler.
            request_id: For the server's log.
            timeout: Seconds that the call may take; by default the client's.

        Returns:
            The outputs by name; BYTES as arrays of `bytes` objects.

        Raises:
            StatusError: The server answered with an error.
            ConnectionFailed: There is no answer.
            DeadlineExceeded: There is none in time.
            ValueError: An input's value cannot be sent.
            OSError: An input's file cannot be read.
        """
        steps = self._operations.infer(model, inputs, version, outputs, parameters, request_id)
        result: InferResult = self._drive(steps, timeout)
        return result

    def metadata(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return what the server is, or what a model takes and answers.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        found: dict[str, Any] = self._drive(self._operations.metadata(model, version), timeout)
        return found

    def ready(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """Return whether the server, or a model, is ready.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        return bool(self._drive(self._operations.ready(model, version), timeout))

    def live(self, *, timeout: float | None = None) -> bool:
        """Return whether the server is live.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        return bool(self._drive(self._operations.live(), timeout))

    def wait_ready(self, model: str = "", version: str = "", *, timeout: float = 60.0) -> None:
        """Wait until the server, or a model, is ready, also while nothing listens yet.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds to wait at most.

        Raises:
            DeadlineExceeded: It is not ready in time.
        """
        deadline = time.monotonic() + timeout
        why = "it says that it is not ready"
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self.ready(model, version, timeout=left):
                    return
            except (ConnectionFailed, DeadlineExceeded, Unavailable) as error:
                why = str(error)
            time.sleep(min(_POLL_SECONDS, left))
        raise DeadlineExceeded(f"{model or self.url} is not ready after {timeout:g} s: {why}")

    def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return name, version, state and reason of every model of the repository.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        found: list[dict[str, Any]] = self._drive(self._operations.index(), timeout)
        return found

    def load(self, model: str, *, timeout: float | None = None) -> None:
        """Load a model, or load it anew while the old one serves.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._drive(self._operations.load(model), timeout)

    def unload(self, model: str, *, timeout: float | None = None) -> None:
        """Take a model out of service.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._drive(self._operations.unload(model), timeout)

    def statistics(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Return counts and times of models that serve, in Triton's form.

        Args:
            model: A model's name, or "" for all.
            version: The model's version, or "" for all.
            timeout: Seconds that the call may take; by default the client's.
        """
        steps = self._operations.statistics(model, version)
        found: list[dict[str, Any]] = self._drive(steps, timeout)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self, steps: Steps, timeout: float | None) -> Any:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        try:
            operation = next(steps)
            while True:
                try:
                    answer = self._call(operation, deadline)
                except ClientError as error:
                    operation = steps.throw(error)
                else:
                    operation = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _call(self, operation: Operation, deadline: float) -> Document:
        attempt = 0
        while True:
            try:
                return self._transport.call(operation, deadline)
            except Unavailable as error:
                pause = self._retries.pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)
