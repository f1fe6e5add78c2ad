"""Answers the calls of GRPCInferenceService about the state and metadata of the server and its models.

Each method takes the request message and the call, and returns the answer's message or raises. `services.py` checks the
callers, and the servers turn exceptions into gRPC errors.
"""

from typing import Any

from ksrv._native.grpc.grpc_call import Call
from ksrv.protocol import metadata
from ksrv.protocol.protobuf import message_class
from ksrv.server.shared.parts import ServerParts


class Servicer:
    """The answers of one server.

    Args:
        parts: The parts that the front ends share.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._limits = parts.settings.limits

    def server_live(self, request: Any, call: Call) -> Any:
        """Answer ServerLive."""
        return message_class("inference.ServerLiveResponse")(live=True)

    def server_ready(self, request: Any, call: Call) -> Any:
        """Answer ServerReady."""
        return message_class("inference.ServerReadyResponse")(ready=self._engine.ready())

    def model_ready(self, request: Any, call: Call) -> Any:
        """Answer ModelReady."""
        ready = self._engine.model_ready(request.name, request.version)
        return message_class("inference.ModelReadyResponse")(ready=ready)

    def server_metadata(self, request: Any, call: Call) -> Any:
        """Answer ServerMetadata."""
        document = metadata.server_metadata(self._parts.extensions)
        return metadata.to_message("inference.ServerMetadataResponse", document)

    def model_metadata(self, request: Any, call: Call) -> Any:
        """Answer ModelMetadata."""
        spec = self._engine.describe(request.name, request.version)
        document = metadata.model_metadata(spec, self._engine.versions(request.name), self._limits)
        # The field is a map of texts in the Open Inference Protocol and a map of messages in MLServer's proto, whose
        # clients cannot read an answer with texts at all.
        document.pop("properties", None)
        return metadata.to_message("inference.ModelMetadataResponse", document)
