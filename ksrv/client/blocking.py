"""The client whose methods wait for their answers."""

from collections.abc import Generator
from typing import Any

from ksrv.client.asynchronous import AsyncClient
from ksrv.client.operations import InferResult, Outputs, Parameters, Progress
from ksrv.client.waiting import BLOCKING, iterate, wait


class _Calls(AsyncClient):
    """The calls, which block instead of being suspended."""

    _waiting = BLOCKING


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
        self._calls = _Calls(
            url, token=token, ca=ca, certificate=certificate, timeout=timeout, retries=retries
        )
        self.url = self._calls.url

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
        return wait(
            self._calls.infer(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                timeout=timeout,
                progress=progress,
            )
        )

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
        return iterate(
            self._calls.stream(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                timeout=timeout,
            )
        )

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
        return iterate(
            self._calls.generate(
                model,
                text,
                version=version,
                parameters=parameters,
                request_id=request_id,
                timeout=timeout,
            )
        )

    def metadata(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return what the server is, or what a model takes and answers.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        return wait(self._calls.metadata(model, version, timeout=timeout))

    def ready(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """Return whether the server, or a model, is ready.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        return wait(self._calls.ready(model, version, timeout=timeout))

    def live(self, *, timeout: float | None = None) -> bool:
        """Return whether the server is live.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        return wait(self._calls.live(timeout=timeout))

    def wait_ready(self, model: str = "", version: str = "", *, timeout: float = 60.0) -> None:
        """Wait until the server, or a model, is ready, also while nothing listens yet.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds to wait at most.

        Raises:
            DeadlineExceeded: It is not ready in time.
        """
        wait(self._calls.wait_ready(model, version, timeout=timeout))

    def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return name, version, state and reason of every model of the repository.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        return wait(self._calls.index(timeout=timeout))

    def load(self, model: str, *, timeout: float | None = None) -> None:
        """Load a model, or load it again while the old version serves.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        wait(self._calls.load(model, timeout=timeout))

    def unload(self, model: str, *, timeout: float | None = None) -> None:
        """Take a model out of service.

        Args:
            model: Its name.
            timeout: Seconds that the call may take; by default the client's.
        """
        wait(self._calls.unload(model, timeout=timeout))

    def statistics(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Return counts and times of models that serve, in Triton's form.

        Args:
            model: A model's name, or "" for all.
            version: The model's version, or "" for all.
            timeout: Seconds that the call may take; by default the client's.
        """
        return wait(self._calls.statistics(model, version, timeout=timeout))

    def close(self) -> None:
        """Close the connections."""
        wait(self._calls.close())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
