"""The client for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from ksrv.client.blocking import Answer, with_scheme
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
from ksrv.client.http1.asynchronous import AsyncConnectionPool
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

_POLL_SECONDS = 0.1


class AsyncRestTransport:
    """Carries operations over REST; see `RestTransport`."""

    def __init__(self, target: Target, *, repeats: bool) -> None:
        self._pool = AsyncConnectionPool(target, repeats=repeats)

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        return answer_of(operation, await self._pool.send(http_request(operation), deadline))

    async def stream(
        self, operation: Operation, deadline: float
    ) -> AsyncGenerator[InferResult, None]:
        """Yield the parts of the answer to an operation."""
        async with self._pool.open(http_request(operation), deadline) as (response, pieces):
            if not is_event_stream(response):
                yield answer_of(operation, whole(response, [piece async for piece in pieces]))
                return
            reader = EventReader(operation)
            async for piece in pieces:
                for part in reader.feed(piece):
                    yield part

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()


class AsyncGrpcTransport(GrpcChannel):
    """Carries operations over gRPC."""

    library = "grpc.aio"

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        with self.converted_errors():
            return grpc_answer_of(operation, await self.begin(operation, deadline))

    async def stream(
        self, operation: Operation, deadline: float
    ) -> AsyncGenerator[InferResult, None]:
        """Yield the parts of the answer to an operation."""
        call = self.begin_stream(operation, deadline)
        try:
            with self.converted_errors():
                async for content in call:
                    yield grpc_answer_of(operation, content)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class AsyncClient:
    """The client for asyncio; an object belongs to one event loop, and any number of tasks may share it.

    It has the arguments and methods of `Client`; the methods are coroutines.
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
        self._transport: AsyncRestTransport | AsyncGrpcTransport
        if self.url.startswith("grpc"):
            self._transport = AsyncGrpcTransport(self.url, token, ca, certificate)
        else:
            target = make_target(self.url, token, ca, certificate)
            self._transport = AsyncRestTransport(target, repeats=retries > 0)

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
        """See `Client.infer`."""
        steps = self._operations.infer(
            model, inputs, version, outputs, parameters, request_id, progress
        )
        result: InferResult = await self._drive(steps, self._deadline(timeout))
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
        """See `Client.stream`."""
        deadline = self._deadline(timeout)
        steps = self._operations.inference(
            "ModelStreamInfer", model, inputs, version, outputs, parameters, request_id
        )
        operation: Operation = await self._drive(steps, deadline)
        try:
            first, parts = await self._retried(lambda: self._begun(operation, deadline), deadline)
        except (InvalidRequest, NotFound, StreamFailed):  # gRPC tells no status in a stream
            self._operations.forget(model)
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
        """See `Client.generate`."""
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
        """See `Client.metadata`."""
        steps = self._operations.metadata(model, version)
        found: dict[str, Any] = await self._drive(steps, self._deadline(timeout))
        return found

    async def ready(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> bool:
        """See `Client.ready`."""
        steps = self._operations.ready(model, version)
        return bool(await self._drive(steps, self._deadline(timeout)))

    async def live(self, *, timeout: float | None = None) -> bool:
        """See `Client.live`."""
        return bool(await self._drive(self._operations.live(), self._deadline(timeout)))

    async def wait_ready(
        self, model: str = "", version: str = "", *, timeout: float = 60.0
    ) -> None:
        """See `Client.wait_ready`."""
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
            await asyncio.sleep(min(_POLL_SECONDS, left))
        raise DeadlineExceeded(f"{model or self.url} is not ready after {timeout:g} s: {why}")

    async def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """See `Client.index`."""
        steps = self._operations.index()
        found: list[dict[str, Any]] = await self._drive(steps, self._deadline(timeout))
        return found

    async def load(self, model: str, *, timeout: float | None = None) -> None:
        """See `Client.load`."""
        await self._drive(self._operations.load(model), self._deadline(timeout))

    async def unload(self, model: str, *, timeout: float | None = None) -> None:
        """See `Client.unload`."""
        await self._drive(self._operations.unload(model), self._deadline(timeout))

    async def statistics(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """See `Client.statistics`."""
        steps = self._operations.statistics(model, version)
        found: list[dict[str, Any]] = await self._drive(steps, self._deadline(timeout))
        return found

    async def close(self) -> None:
        """See `Client.close`."""
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _deadline(self, timeout: float | None) -> float:
        return deadline_after(self.timeout if timeout is None else timeout)

    async def _drive(self, steps: Steps, deadline: float) -> Any:
        try:
            operation = next(steps)
            while True:
                try:
                    answer = await self._call(operation, deadline)
                except ClientError as error:
                    operation = steps.throw(error)
                else:
                    operation = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _call(self, operation: Operation, deadline: float) -> Document:
        return await self._retried(lambda: self._transport.call(operation, deadline), deadline)

    async def _begun(
        self, operation: Operation, deadline: float
    ) -> tuple[InferResult | None, AsyncGenerator[InferResult, None]]:
        parts = self._transport.stream(operation, deadline)
        return await anext(parts, None), parts

    async def _retried(self, call: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
        attempt = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                pause = self._retries.pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)
