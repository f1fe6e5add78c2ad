"""Sends operations over REST, and reads single answers and event streams."""

from collections.abc import AsyncGenerator

from ksrv.client.http1.connections import ConnectionPool
from ksrv.client.operations import Document, InferResult, Operation
from ksrv.client.rest import EventReader, answer_of, http_request, is_event_stream, with_body


class RestTransport:
    """Sends operations over REST."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self.close = pool.close

    async def call(self, operation: Operation, deadline: float) -> Document:
        """Return the answer to an operation."""
        return answer_of(operation, await self._pool.send(http_request(operation), deadline))

    async def stream(
        self, operation: Operation, deadline: float
    ) -> AsyncGenerator[InferResult, None]:
        """Yield the parts of the answer to an operation."""
        async with self._pool.open(http_request(operation), deadline) as (response, pieces):
            if not is_event_stream(response):
                yield answer_of(operation, with_body(response, [piece async for piece in pieces]))
                return
            reader = EventReader(operation)
            async for piece in pieces:
                for part in reader.feed(piece):
                    yield part
