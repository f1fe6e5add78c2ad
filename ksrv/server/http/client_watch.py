"""Requests whose client disconnects: the native HTTP server finds out, and has them cancelled.

Under another worker, or another WSGI server, the request of a client that is gone runs to its end.
"""

from collections.abc import Mapping
from typing import Any

from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.server.app_message import AppMessage
from ksrv.engine.requests.handle import SplitRequest
from ksrv.request import RequestHandle
from ksrv.server.http.received_body import MESSAGE

CLIENT_LOOK_NS = 250_000_000
"""After so long without a piece of a streamed answer, its client is looked at."""


def watch_client(environ: Mapping[str, Any], handle: RequestHandle) -> None:
    """Have a queued request cancelled when its client disconnects.

    Args:
        environ: The WSGI environment.
        handle: The request.
    """
    message: AppMessage | None = environ.get(MESSAGE)
    watched = handle.parts[-1] if isinstance(handle, SplitRequest) else handle
    if message is not None and isinstance(watched, NativeHandle) and not watched.done():
        message.watch(watched)
