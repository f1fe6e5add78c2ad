"""The client for asyncio. The blocking client runs the same coroutines over functions that block."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar, TypeVar

from ksrv.client.errors import (
    NO_SERVER_BEHIND,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    StatusError,
    StreamFailed,
    Unavailable,
)
from ksrv.client.grpc_calls import GrpcTransport
from ksrv.client.http1.connections import ConnectionPool
from ksrv.client.http1.messages import make_target
from ksrv.client.operations import (
    Document,
    InferResult,
    Operation,
    Outputs,
    Parameters,
    Progress,
    deadline_after,
    inference,
)
from ksrv.client.rest_calls import RestTransport
from ksrv.client.retries import Retries
from ksrv.client.tensors import Declared, declared_inputs
from ksrv.client.waiting import ASYNCIO, Waiting

SCHEMES = ("http", "https", "grpc", "grpcs")

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.1


def with_scheme(url: str) -> str:
    """Return a URL with its scheme; http if it has none.

    Raises:
        ValueError: The client does not support the scheme.
    """
    scheme, _, rest = (url if "://" in url else f"http://{url}").strip().partition("://")
    # In lower case, by which the transport is chosen: GRPCS:// must not send a token without TLS.
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise ValueError(f"expected a URL with one of {', '.join(SCHEMES)}, got {url!r}")
    return f"{scheme}://{rest}"


class AsyncClient:
    """The client for asyncio. An object belongs to one event loop, and any number of tasks may share it.

    It has the arguments and methods of `Client`, but the methods are coroutines.
    """

    _waiting: ClassVar[Waiting] = ASYNCIO

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
        self._declared: dict[tuple[str, str], dict[str, Declared]] = {}
        self._retries = Retries(retries)
        self._transport: RestTransport | GrpcTransport
        if self.url.startswith("grpc"):
            self._transport = GrpcTransport(self._waiting.grpc, self.url, token, ca, certificate)
        else:
            target = make_target(self.url, token, ca, certificate)
            opens = self._waiting.open_channel
            self._transport = RestTransport(ConnectionPool(target, opens, repeats=retries > 0))

    async def infer(
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
        """Send an inference request to a model.

        Args:
            model: The model's name.
            inputs: Values by input name, or the value alone for a model with one input. A value is
                an array, nested lists of numbers, or for images and texts bytes, `pathlib.Path`,
                `str`, or a list of them for a batch. One row needs no batch dimension.
            version: The model's version; by default the highest.
            outputs: Names of the wanted outputs, or a mapping of these names to parameters such as
                `{"probabilities": {"classification": 3}}`; by default all.
            parameters: The request's parameters, for the handler.
            request_id: The request's id, for the server's log.
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
        deadline = self._deadline(timeout)
        declared = await self._inputs_of(model, version, deadline)
        operation = inference(
            "ModelInfer",
            model,
            inputs,
            version,
            declared,
            outputs,
            parameters,
            request_id,
            progress,
        )
        try:
            result: InferResult = await self._call(operation, deadline)
        except (InvalidRequest, NotFound):
            self._forget_inputs(model)
            raise
        return result

    async def stream(
        self,
        model: str,
        inputs: Any,
        *,
        version: str = "",
        outputs: Outputs | None = None,
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> AsyncGenerator[InferResult, None]:
        """Send an inference request to a model that answers in parts, and yield each part when it arrives.

        The request is sent when the first part is asked for. Leaving the loop cancels the request. If the server is
        busy, the request is sent again, up to `retries` times, but never after a part has arrived. A model that does
        not stream answers in one part.

        Args:
            model: The model's name.
            inputs: As for `infer`.
            version: The model's version; by default the highest.
            outputs: As for `infer`. Images and other bytes that are not UTF-8 can be streamed over gRPC only.
            parameters: The request's parameters, for the handler.
            request_id: The request's id, for the server's log.
            timeout: Seconds that the whole answer may take; by default the client's.

        Yields:
            The outputs of each part by name.

        Raises:
            StreamFailed: The handler failed after its first part; over gRPC also before.
            StatusError: The server answered with an error.
            ConnectionFailed: The answer does not arrive, or is cut off.
            DeadlineExceeded: The answer is not complete in time.
            ValueError: An input's value cannot be sent.
            OSError: An input's file cannot be read.
        """
        deadline = self._deadline(timeout)
        declared = await self._inputs_of(model, version, deadline)
        operation = inference(
            "ModelStreamInfer", model, inputs, version, declared, outputs, parameters, request_id
        )
        try:
            first, parts = await self._retried(lambda: self._begin(operation, deadline), deadline)
        # Over gRPC an error in a stream has no status, so every StreamFailed may mean that the model has other inputs now.
        except (InvalidRequest, NotFound, StreamFailed):
            self._forget_inputs(model)
            raise
        async with aclosing(parts):
            if first is not None:
                yield first
                async for part in parts:
                    yield part

    async def generate(
        self,
        model: str,
        text: str,
        *,
        version: str = "",
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Send a text to a model that answers with text, and yield the pieces of its text when they arrive.

        Args:
            model: The name of a model with one BYTES input.
            version: The model's version; by default the highest.
            parameters: The request's parameters, for the handler.
            request_id: The request's id, for the server's log.
            timeout: Seconds that the whole answer may take; by default the client's.

        Yields:
            The text of each part's only BYTES output.

        Raises:
            ClientError: As `stream`; also if the answer has no text.
        """
        parts = self.stream(
            model,
            text,
            version=version,
            parameters=parameters,
            request_id=request_id,
            timeout=timeout,
        )
        async with aclosing(parts):
            async for part in parts:
                yield part.text

    async def metadata(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return the server's name, version and extensions, or a model's inputs and outputs.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        found: dict[str, Any] = await self._ask("Metadata", model, version, timeout)
        return found

    async def ready(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> bool:
        """Return whether the server, or a model, is ready.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds that the call may take; by default the client's.
        """
        return bool((await self._ask("Ready", model, version, timeout))["ready"])

    async def live(self, *, timeout: float | None = None) -> bool:
        """Return whether the server is live.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        answer = await self._call(Operation("ServerLive"), self._deadline(timeout))
        return bool(answer["live"])

    async def wait_ready(
        self, model: str = "", version: str = "", *, timeout: float = 60.0
    ) -> None:
        """Wait until the server, or a model, is ready. The server need not be started yet.

        Args:
            model: A model's name, or "" for the server.
            version: The model's version; by default the highest.
            timeout: Seconds to wait at most.

        Raises:
            DeadlineExceeded: The server or the model is not ready in time.
        """
        deadline = time.monotonic() + timeout
        why = "it says that it is not ready"
        while (left := deadline - time.monotonic()) > 0:
            try:
                if await self.ready(model, version, timeout=left):
                    return
            except (ConnectionFailed, DeadlineExceeded, Unavailable) as error:
                why = str(error)
            except StatusError as error:
                if error.status not in NO_SERVER_BEHIND:
                    raise
                why = str(error)
            await self._waiting.sleep(min(_POLL_SECONDS, left))
        raise DeadlineExceeded(f"{model or self.url} is not ready after {timeout:g} s: {why}")

    async def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return name, version, state and reason of every model of the repository.

        Args:
            timeout: Seconds that the call may take; by default the client's.
        """
        found = await self._call(Operation("RepositoryIndex"), self._deadline(timeout))
        return [{"version": "", **entry} for entry in found]

    async def load(self, model: str, *, timeout: float | None = None) -> None:
        """Load a model. If it is loaded already, the old model serves until the new model is ready.

        Args:
            model: The model's name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._forget_inputs(model)
        await self._call(Operation("RepositoryModelLoad", model), self._deadline(timeout))

    async def unload(self, model: str, *, timeout: float | None = None) -> None:
        """Take a model out of service.

        Args:
            model: The model's name.
            timeout: Seconds that the call may take; by default the client's.
        """
        self._forget_inputs(model)
        await self._call(Operation("RepositoryModelUnload", model), self._deadline(timeout))

    async def promote(
        self, model: str, agreement: float, requests: int, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Promote the version that `shadow:` names, if it agrees with the version that serves. Only over REST.

        Args:
            model: The model's name.
            agreement: The least share of the compared requests in which the versions agree.
            requests: The least number of compared requests.
            timeout: Seconds that the call may take; by default the client's.

        Returns:
            The outcome: "promoted", "reason" and the evidence (docs/shadow.md).

        Raises:
            ValueError: The client calls over gRPC.
        """
        if self.url.startswith("grpc"):
            raise ValueError(
                f"promote is a call over REST; expected http://HOST:PORT, got {self.url}"
            )
        self._forget_inputs(model)
        bound = {"agreement": agreement, "requests": requests}
        operation = Operation("ModelPromote", model, parameters=bound)
        found: dict[str, Any] = await self._call(operation, self._deadline(timeout))
        return found

    async def statistics(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Return counts and times of models that serve, in Triton's form.

        Args:
            model: A model's name, or "" for all.
            version: The model's version, or "" for all.
            timeout: Seconds that the call may take; by default the client's.
        """
        operation = Operation("ModelStatistics", model, version)
        found = await self._call(operation, self._deadline(timeout))
        statistics: list[dict[str, Any]] = found["model_stats"]
        return statistics

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _deadline(self, timeout: float | None) -> float:
        return deadline_after(self.timeout if timeout is None else timeout)

    async def _ask(self, what: str, model: str, version: str, timeout: float | None) -> Document:
        """Ask "Metadata" or "Ready" of the server, or of a model if one is named."""
        operation = (
            Operation(f"Model{what}", model, version) if model else Operation(f"Server{what}")
        )
        return await self._call(operation, self._deadline(timeout))

    async def _inputs_of(self, model: str, version: str, deadline: float) -> dict[str, Declared]:
        """Return the inputs of a model, which are cached until a request is refused or the model is loaded again."""
        known = self._declared.get((model, version))
        if known is None:
            asked = Operation("ModelMetadata", model, version)
            known = declared_inputs(await self._call(asked, deadline))
            self._declared[model, version] = known
        return known

    def _forget_inputs(self, model: str) -> None:
        for key in list(self._declared):
            if key[0] == model:
                self._declared.pop(key, None)

    async def _call(self, operation: Operation, deadline: float) -> Document:
        return await self._retried(lambda: self._transport.call(operation, deadline), deadline)

    async def _begin(
        self, operation: Operation, deadline: float
    ) -> tuple[InferResult | None, AsyncGenerator[InferResult, None]]:
        """Send a request, and return the first part of its answer and the generator of the other parts."""
        parts = self._transport.stream(operation, deadline)
        return await anext(parts, None), parts

    async def _retried(self, call: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
        """Make a call, again after a pause while the server is busy, as `Retries` allows."""
        attempt = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                pause = self._retries.pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            await self._waiting.sleep(pause)
