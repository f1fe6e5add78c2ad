"""The client for asyncio."""

import asyncio
import time
from typing import Any

from ksrv.client.blocking import with_scheme
from ksrv.client.errors import ClientError, ConnectionFailed, DeadlineExceeded, Unavailable
from ksrv.client.grpc_calls import GrpcChannel
from ksrv.client.grpc_calls import answer_of as grpc_answer_of
from ksrv.client.http1.asynchronous import AsyncConnectionPool
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

_POLL_SECONDS = 0.1


class AsyncRestTransport:
    """Carries operations over REST; see `RestTransport`."""

    def __init__(
        self, url: str, token: str | None, ca: str | None, certificate: tuple[str, str] | None
    ) -> None:
        self._pool = AsyncConnectionPool(make_target(url, token, ca, certificate))

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        return answer_of(operation, await self._pool.send(http_request(operation), deadline))

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()


class AsyncGrpcTransport(GrpcChannel):
    """Carries operations over gRPC."""

    library = "grpc.aio"

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        with self.telling_errors():
            return grpc_answer_of(operation, await self.begin(operation, deadline))

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class AsyncClient:
    """The client for asyncio; one belongs to one event loop, and any number of tasks may share it.

    Args and methods are those of `Client`; the methods are coroutines.
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
        kind = AsyncGrpcTransport if self.url.startswith("grpc") else AsyncRestTransport
        self._transport: AsyncRestTransport | AsyncGrpcTransport = kind(
            self.url, token, ca, certificate
        )

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
    ) -> InferResult:
        """See `Client.infer`."""
        steps = self._operations.infer(model, inputs, version, outputs, parameters, request_id)
        result: InferResult = await self._drive(steps, timeout)
        return result

    async def metadata(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """See `Client.metadata`."""
        found: dict[str, Any] = await self._drive(
            self._operations.metadata(model, version), timeout
        )
        return found

    async def ready(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> bool:
        """See `Client.ready`."""
        return bool(await self._drive(self._operations.ready(model, version), timeout))

    async def live(self, *, timeout: float | None = None) -> bool:
        """See `Client.live`."""
        return bool(await self._drive(self._operations.live(), timeout))

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
            await asyncio.sleep(min(_POLL_SECONDS, left))
        raise DeadlineExceeded(f"{model or self.url} is not ready after {timeout:g} s: {why}")

    async def index(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """See `Client.index`."""
        found: list[dict[str, Any]] = await self._drive(self._operations.index(), timeout)
        return found

    async def load(self, model: str, *, timeout: float | None = None) -> None:
        """See `Client.load`."""
        await self._drive(self._operations.load(model), timeout)

    async def unload(self, model: str, *, timeout: float | None = None) -> None:
        """See `Client.unload`."""
        await self._drive(self._operations.unload(model), timeout)

    async def statistics(
        self, model: str = "", version: str = "", *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """See `Client.statistics`."""
        steps = self._operations.statistics(model, version)
        found: list[dict[str, Any]] = await self._drive(steps, timeout)
        return found

    async def close(self) -> None:
        """See `Client.close`."""
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _drive(self, steps: Steps, timeout: float | None) -> Any:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
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
        attempt = 0
        while True:
            try:
                return await self._transport.call(operation, deadline)
            except Unavailable as error:
                pause = self._retries.pause(error, attempt, deadline)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)
