"""Inference calls of WSGI resources. The resource's thread waits for the answers; a failure is raised, and Falcon
makes the error's answer.

The native HTTP server cancels the request of a client that disconnects. Under another worker, or another WSGI server,
such a request runs to its end.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ksrv._native.queue.request_handle import NativeHandle
from ksrv._native.server.app_message import AppMessage
from ksrv._native.server.response_stream import ChunkForm
from ksrv.protocol.accept import file_type
from ksrv.request import InferRequest, InferResponse, RequestHandle
from ksrv.server.call import Find, StoredCall, find_model
from ksrv.server.http.received_body import MESSAGE

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

CLIENT_LOOK_NS = 250_000_000
"""Nanoseconds without a piece after which a streamed answer checks that its client is still connected."""

TARGET = "ksrv.target"
"""The key in the WSGI environment of a weak reference to the model that was found before the body arrived. It is weak
so that a model can be unloaded while a slow body arrives."""


def find_before_body(
    engine: "Engine", environ: dict[str, Any], name: str, version: str
) -> "ModelVersion":
    """Return the model of a call whose body is not received yet, and note it for the call's `read`.

    Raises:
        KsrvError: The model does not serve.
    """
    target = find_model(engine, name, version)
    environ[TARGET] = weakref.ref(target)
    return target


class WsgiCall(StoredCall):
    """An `InferCall` whose response the calling thread waits for.

    Args:
        environ: The WSGI environment.
        read: Reads the request; see `InferCall.read`.

    Attributes:
        request: The request, once it is read.
    """

    blocks = True
    request: InferRequest

    def __init__(self, environ: dict[str, Any], read: Callable[[Find], InferRequest]) -> None:
        super().__init__()
        self.environ = environ
        self._read = read

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""

        def find_once(name: str, version: str) -> "ModelVersion":
            known = self.environ.pop(TARGET, None)
            target: ModelVersion | None = None if known is None else known()
            return find(name, version) if target is None or target.retired else target

        self.request = self._read(find_once)
        return self.request

    def watch(self, handle: RequestHandle) -> None:
        """See `InferCall.watch`."""
        super().watch(handle)
        message: AppMessage | None = self.environ.get(MESSAGE)
        if message is not None and isinstance(handle, NativeHandle) and not handle.done():
            message.watch(handle)


class PendingCall(WsgiCall):
    """An `InferCall` that the calling thread waits for later."""

    blocks = False

    def first(self) -> InferResponse | None:
        """Wait for the first part; None if the call ends without one."""
        while not self.answers.finished:
            # None also if no part has arrived in this time: then wait again.
            part: InferResponse | None = self.answers.take(CLIENT_LOOK_NS / 1e9)
            if part is not None:
                return part
        return None


class StreamedCall(PendingCall):
    """A `PendingCall` whose handler may answer in parts.

    Args:
        environ: As of `WsgiCall`.
        read: As of `WsgiCall`.
        form_of: See `ResponseStream.form_of`; None if each part is taken as an `InferResponse`.
    """

    def __init__(
        self,
        environ: dict[str, Any],
        read: Callable[[Find], InferRequest],
        form_of: Callable[[InferResponse], ChunkForm | None] | None = None,
    ) -> None:
        super().__init__(environ, read)
        self.answers.form_of = form_of

    def read(self, find: Find) -> InferRequest:
        """See `InferCall.read`."""
        request = super().read(find)
        if not file_type(request.accept):  # a file is one answer
            # The parts of a stream are JSON, so raw bytes and files are switched off.
            request.stream, request.binary_output = self.answers, False
            request.accept = None
            for output in request.outputs:
                output.binary = None
        return request
