"""Requests that come by Ray's HTTP ingress, forwarded to the replica's own server."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from ksrv.ray.server_process import ServerProcess

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that are about one connection, and are not for the next one."""
_UNASKED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Fields that aiohttp adds where the client sent none; an answer might be compressed for it then."""


class Forwarder:
    """Sends requests of Ray's ingress to a server on this node, and its answers back.

    Bodies are passed on as they come, in both directions.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._session: Any = None

    def _open_session(self) -> Any:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        return ClientSession(
            # The server bounds its connections and queues itself. A connection for each request, because
            # a body that streams cannot be sent again where a kept connection turns out to be closed.
            connector=TCPConnector(limit=0, force_close=True),
            timeout=ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
            skip_auto_headers=_UNASKED,
            cookie_jar=DummyCookieJar(),
        )

    async def forward(self, request: Any) -> Any:
        """Return the server's answer to a request.

        Args:
            request: A `starlette.requests.Request`.
        """
        from starlette.responses import StreamingResponse

        if not self._server.http:
            return _unavailable("HTTP is off in the replicas; call their gRPC addresses")
        try:
            answer = await self._send(request, _path(request))
        except OSError as error:
            return _unavailable(str(error))
        response = StreamingResponse(_body(answer), status_code=answer.status)
        response.raw_headers = [
            (name.lower(), value)
            for name, value in answer.raw_headers
            if name.decode("latin-1").lower() not in _HOP_BY_HOP
        ]
        return response

    async def refusal(self, request: Any) -> Any:
        """Return the server's refusal of a caller who may not read its metadata, or None.

        Args:
            request: A GET of something that the server does not know.
        """
        from starlette.responses import Response

        if not self._server.http:
            return None
        try:
            async with await self._send(request, "/v2") as answer:
                if answer.status < 400:
                    return None
                return Response(await answer.read(), answer.status, media_type=answer.content_type)
        except OSError as error:
            return _unavailable(str(error))

    async def _send(self, request: Any, path: str) -> Any:
        """Send a request, and return the answer without its body.

        Raises:
            OSError: The server does not answer.
        """
        from aiohttp import ClientError
        from yarl import URL

        if self._session is None:
            self._session = self._open_session()
        try:
            return await self._session.request(
                request.method,
                URL(self._server.url + path, encoded=True),
                headers=self._headers(request),
                data=request.stream() if _has_body(request) else None,
                allow_redirects=False,
                ssl=self._server.tls_context() or False,
            )
        except (ClientError, OSError) as error:
            raise OSError(
                f"the replica's server does not answer: {error}; its log, in that of the replica, says why"
            ) from error

    def _headers(self, request: Any) -> list[tuple[str, str]]:
        named = request.headers.get("connection", "").lower().split(",")
        dropped = _HOP_BY_HOP | {name.strip() for name in named}
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers.raw
            if name.decode("latin-1").lower() not in dropped
        ]
        # Without it a caller from elsewhere would have the rights of callers on this machine.
        client = request.client.host if request.client else "unknown"
        return [*headers, ("x-forwarded-for", client)]


def _unavailable(reason: str) -> Any:
    from starlette.responses import Response

    return Response(
        json.dumps({"error": reason}),
        status_code=503,
        headers={"Retry-After": "1"},
        media_type="application/json",
    )


def route_of(request: Any) -> str:
    """Return a request's path below the prefix of the application.

    Args:
        request: A `starlette.requests.Request`.
    """
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")) or "/"


def _path(request: Any) -> str:
    query = request.scope.get("query_string", b"").decode("latin-1")
    return quote(route_of(request), safe="/:@!$&'()*+,;=~") + (f"?{query}" if query else "")


def _has_body(request: Any) -> bool:
    return "content-length" in request.headers or "transfer-encoding" in request.headers


async def _body(answer: Any) -> AsyncIterator[bytes]:
    """Yield an answer's body, and give its connection back however the reader ends."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        answer.release()
