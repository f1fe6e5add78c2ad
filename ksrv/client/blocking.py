"""The client whose methods wait for their answers."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

from ksrv.client.errors import (
    NO_SERVER_BEHIND,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    StatusError,
    StreamFailed,
    Unavailable,
)
from ksrv.client.grpc_calls import GrpcChannel
from ksrv.client.grpc_calls import answer_of as grpc_answer_of
from ksrv.client.http1.blocking import ConnectionPool
from ksrv.client.http1.messages import Target, make_target
from ksrv.client.operations import (
    Document,
    InferResult,
    Operation,
    Operations,
    Outputs,
    Parameters,
    Progress,
    Steps,
    deadline_after,
)
from ksrv.client.rest import EventReader, answer_of, http_request, is_event_stream, whole
from ksrv.client.retries import Retries

SCHEMES = ("http", "https", "grpc", "grpcs")

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.1


def with_scheme(url: str) -> str:
    """Return a URL with its scheme; http if it has none.

    Args:
        url: The URL.

    Raises:
        ValueError: The client does not support the scheme.
    """
    scheme, _, rest = (url if "://" in url else f"http://{url}").strip().partition("://")
    # In lower case, by which the transport is chosen: GRPCS:// must not send a token without TLS.
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise ValueError(f"expected a URL with one of {', '.join(SCHEMES)}, got {url!r}")
    return f"{scheme}://{rest}"


class RestTransport:
    """Carries operations over REST.

    Args:
        target: The server's address.
        repeats: Whether a request may be sent again after a kept connection broke.
    """

    def __init__(self, target: Target, *, repeats: bool) -> None:
        self._pool = ConnectionPool(target, repeats=repeats)

    def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        return answer_of(operation, self._pool.send(http_request(operation), deadline))

    def stream(self, operation: Operation, deadline: float) -> Generator[InferResult, None, None]:
        """Yield the parts of the answer to an operation."""
        with self._pool.open(http_request(operation), deadline) as (response, pieces):
            if not is_event_stream(response):
                yield answer_of(operation, whole(response, pieces))
                return
            reader = EventReader(operation)
            for piece in pieces:
                yield from reader.feed(piece)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class GrpcTransport(GrpcChannel):
    """Carries operations over gRPC."""

    library = "grpc"

    def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        with self.converted_errors():
            return grpc_answer_of(operation, self.begin(operation, deadline))

    def stream(self, operation: Operation, deadline: float) -> Generator[InferResult, None, None]:
        """Yield the parts of the answer to an operation."""
        call = self.begin_stream(operation, deadline)
        try:
            with self.converted_errors():
                for content in call:
                    yield grpc_answer_of(operation, content)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class Client:
    """A client whose methods wait for their answers; any number of threads may share one.

    Connections are kept and used again. A call that finds the server busy (429, 503) is made again
    after the time that the server names, within the call's timeout.

    Args:
        url: http://HOST:PORT or https://, for REST; grpc://HOST:PORT or grpcs://, for gRPC. A path
            after HOST:PORT is put in front of every route of REST.
        token: Sent as bearer token with every call.
        ca: A file (PEM) of the authorities to trust with TLS, instead of the system's.
        certificate: Files (PEM) of the client's certificate chain and key, for servers that ask.
        timeout: Seconds that a call may take, repeats included, unless the call has another timeout.
        retries: How often a call is made again while the server is busy. With 0 no request is sent
            twice for any reason.

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
        self._transport: RestTransport | GrpcTransport
        if self.url.startswith("grpc"):
            self._transport = GrpcTransport(self.url, token, ca, certificate)
        else:
            target = make_target(self.url, token, ca, certificate)
            self._transport = RestTransport(target, repeats=retries > 0)

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
        progress: Progress | None = None,
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
            progress: Called with the bytes sent so far and the bytes of the whole request, after each MiB
                of an upload over REST. Not called over gRPC.

        Returns:
            The outputs by name; BYTES as arrays of `bytes` objects.

        Raises:
            StatusError: The server answered with an error.
            ConnectionFailed: No answer arrived.
            DeadlineExceeded: No answer arrived in time.
            ValueError: An input's value cannot be sent.
            OSError: An input's file cannot be read.
        """
        steps = self._operations.infer(
            model, inputs, version, outputs, parameters, request_id, progress
        )
        result: InferResult = self._drive(steps, self._deadline(timeout))
        return result

    def stream(
        self,
        model: str,
        inputs: Any,
        *,
        version: str = "",
        outputs: Outputs | None = None,
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> Generator[InferResult, None, None]:
        """Ask a model that answers in parts, and yield each part when it arrives.

        The request is sent when the first part is asked for. Leaving the loop cancels it. It is sent again
        if the server is busy, up to `retries` times, but never once a part has arrived. A model that does not stream
        answers in one part.

        Args:
            model: Its name.
            inputs: As for `infer`.
            version: The model's version; by default the highest.
            outputs: As for `infer`; files of pictures and other bytes that are no UTF-8 cross gRPC alone.
            parameters: Of the request, for the handler.
            request_id: For the server's log.
            timeout: Seconds that the whole answer may take; by default the client's.

        Yields:
            The outputs of each part by name.

        Raises:
            StreamFailed: The handler failed after its first part; over gRPC also before.
            StatusError: The server answered with an error.
            ConnectionFailed: The answer does not arrive, or is cut off.
            DeadlineExceeded: It is not complete in time.
            ValueError: An input's value cannot be sent.
            OSError: An input's file cannot be read.
        """
        deadline = self._deadline(timeout)
        steps = self._operations.inference(
            "ModelStreamInfer", model, inputs, version, outputs, parameters, request_id
        )
        operation: Operation = self._drive(steps, deadline)
        try:
            first, parts = self._retried(lambda: self._begun(operation, deadline), deadline)
        except (InvalidRequest, NotFound, StreamFailed):  # gRPC tells no status in a stream
            self._operations.forget(model)
            raise
        with closing(parts):
            if first is not None:
                yield first
                yield from parts

    def generate(
        self,
        model: str,
        text: str,
        *,
        version: str = "",
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> Generator[str, None, None]:
        """Ask a model of texts, and yield the pieces of its text when they arrive.

        Args:
            model: Its name; it takes one BYTES input.
            text: The text for the model.
            version: The model's version; by default the highest.
            parameters: Of the request, for the handler.
            request_id: For the server's log.
            timeout: Seconds that the whole answer may take; by default the client's.

        Yields:
            The text of each part's only BYTES output.

        Raises:
            ClientError: As `stream`; also if the model answers no text.
        """
        parts = self.stream(
            model,
            text,
            version=version,
            parameters=parameters,
            request_id=request_id,
            timeout=timeout,
        )
        for part in parts:
            yield part.text

    def metadata(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return what the server is, or what a model takes and answers.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        steps = self._operations.metadata(model, version)
        found: dict[str, Any] = self._drive(steps, self._deadline(timeout))
        return found

    def ready(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """Return whether the server, or a model, is ready.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        return bool(self._drive(self._operations.ready(model, version), self._deadline(timeout)))

    def live(self, *, timeout: float | None = None) -> bool:
        """Return whether the server is live.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        return bool(self._drive(self._operations.live(), self._deadline(timeout)))

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
            except StatusError as error:
                if error.status not in NO_SERVER_BEHIND:
                    raise
                why = str(error)
            time.sleep(min(_POLL_SECONDS, left))
        raise DeadlineExceeded(f"{model or self.url} is not ready after {timeout:g} s: {why}")

    def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return name, version, state and reason of every model of the repository.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        found: list[dict[str, Any]] = self._drive(self._operations.index(), self._deadline(timeout))
        return found

    def load(self, model: str, *, timeout: float | None = None) -> None:
        """Load a model, or load it again while the old version serves.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._drive(self._operations.load(model), self._deadline(timeout))

    def unload(self, model: str, *, timeout: float | None = None) -> None:
        """Take a model out of service.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._drive(self._operations.unload(model), self._deadline(timeout))

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
        found: list[dict[str, Any]] = self._drive(steps, self._deadline(timeout))
        return found

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deadline(self, timeout: float | None) -> float:
        return deadline_after(self.timeout if timeout is None else timeout)

    def _drive(self, steps: Steps, deadline: float) -> Any:
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
        return self._retried(lambda: self._transport.call(operation, deadline), deadline)

    def _begun(
        self, operation: Operation, deadline: float
    ) -> tuple[InferResult | None, Generator[InferResult, None, None]]:
        parts = self._transport.stream(operation, deadline)
        return next(parts, None), parts

    def _retried(self, call: Callable[[], Answer], deadline: float) -> Answer:
        attempt = 0
        while True:
            try:
                return call()
            except Unavailable as error:
                pause = self._retries.pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)
