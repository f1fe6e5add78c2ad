"""Reads the requests and writes the answers of ModelInfer, with metadata, deadline and client limits of the call.

The messages are read and written by `ksrv/protocol/grpc.py`.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ksrv._native.grpc.grpc_call import Call, MessageForm
from ksrv._native.grpc.grpc_server import MODEL_INFER_FORM
from ksrv.model.spec import ModelSpec
from ksrv.protocol import grpc as protocol
from ksrv.protocol.shared_memory import CallerMemory
from ksrv.request import InferRequest, InferResponse
from ksrv.server.call import Find
from ksrv.server.grpc.calls import Message, control_user, earlier
from ksrv.server.shared.parts import ServerParts

if TYPE_CHECKING:
    from ksrv.engine.model import ModelVersion


class InferForm(Protocol):
    """The messages of a unary call whose requests run in the engine: ModelInfer, or another server's call.

    Attributes:
        form: The form in which messages need no Python; None if Python reads every message. A class with a form also
            has a function `parse`, which reads a message as `ksrv.protocol.grpc.parse_infer` does.
    """

    form: MessageForm | None

    def read(self, message: Message, call: Call, find: Find) -> InferRequest:
        """Read a request. The caller was checked before.

        Args:
            call: The call, which has metadata and deadline.
            find: Returns the model; see `ksrv.server.call.InferCall.read`.

        Raises:
            KsrvError: The error for the client.
        """

    def render(
        self, response: InferResponse, request: InferRequest, call: Call
    ) -> bytes | list[Any]:
        """Write an answer: one message, or the parts of one."""


class InferCalls:
    """The inference calls of one server.

    Args:
        parts: The parts that the front ends share.
    """

    form: MessageForm | None = MODEL_INFER_FORM
    parse: protocol.Parse = staticmethod(protocol.parse_infer)

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._access = parts.access
        self._limits = parts.settings.limits

    def memory_of(self, call: Call) -> CallerMemory | None:
        """Return the shared memory that a call may use; None if shared memory is off."""
        memory = self._parts.shared_memory
        if memory is None:
            return None
        return memory.of_caller(partial(control_user, self._access, call))

    def read(self, message: Message, call: Call, find: Find) -> InferRequest:
        """Read a request; see `InferForm`."""
        metadata = call.metadata()
        if self._access.hides_tokens:
            metadata.pop("authorization", None)
        target: ModelVersion | None = None

        def spec_of(name: str, version: str) -> ModelSpec:
            nonlocal target
            target = find(name, version)
            return target.spec

        request = self.parse(
            message, spec_of, self._limits, metadata=metadata, memory=self.memory_of(call)
        )
        request.target = target
        request.client = self._access.client_of(call.authorization)
        request.sampled = call.sampled
        if target is not None:
            call.note_model(target.spec.name, target.spec.version)
        request.deadline_ns = earlier(request.deadline_ns, call.deadline_ns)
        return request

    def render(
        self, response: InferResponse, request: InferRequest, call: Call
    ) -> list[bytes | memoryview]:
        """Write an answer; see `InferForm`."""
        return protocol.render_infer(response, request, memory=self.memory_of(call))
