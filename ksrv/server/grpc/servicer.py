"""The calls of GRPCInferenceService beside inference: state, description, repository, and refusals.

Each method takes the request message and returns the answer's message; who may call, and what an
error becomes, is decided around them (`services.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from ksrv.errors import NotImplementedByKsrv, quote
from ksrv.protocol import metadata
from ksrv.protocol.protobuf import message_class
from ksrv.server.grpc.calls import Behavior, Call, memory_user
from ksrv.server.memory_regions import CudaMemory, MemoryUser, SharedMemory
from ksrv.server.shared import repository
from ksrv.server.shared.parts import ServerParts

MemoryUserOf: TypeAlias = Callable[[Call], MemoryUser | None]

_OFF = "shared memory is off; --allow-shared-memory switches it on"

SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{verb}"
    for kind in ("System", "Cuda")
    for verb in ("Status", "Register", "Unregister")
)

OPEN = frozenset({"ServerLive", "ServerReady"})
"""The calls that need no credentials; their messages are empty."""

READ_ONLY_CALLS = frozenset({"ModelReady", "ModelMetadata"})
"""Calls that are a GET in REST: the messages are names, and are accepted even if the memory budget is full."""

CONTROL = frozenset(
    {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "LogSettings",
        "TraceSetting",
        *SHARED_MEMORY,
    }
)
"""The calls that change the models or the settings, or reach into this machine's memory."""


class Servicer:
    """The answers of one server.

    Args:
        parts: The parts that the front ends share.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._limits = parts.settings.limits

    def behaviors(self) -> dict[str, Behavior]:
        """Return every unary call but ModelInfer by its name."""
        answered: dict[str, Behavior] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._repository_model_load,
            "RepositoryModelUnload": self._repository_model_unload,
            "LogSettings": self._log_settings,
            "TraceSetting": self._trace_setting,
        }
        regions = self._parts.shared_memory
        if regions is None:
            return answered | dict.fromkeys(SHARED_MEMORY, _refuse_shared_memory)
        user = partial(memory_user, self._parts.access)
        system = _shared_memory("System", regions, user)
        calls = (*system, *_shared_memory("Cuda", CudaMemory(), user))
        return answered | dict(zip(SHARED_MEMORY, calls, strict=True))

    def _server_live(self, request: Any, call: Call) -> Any:
        return message_class("inference.ServerLiveResponse")(live=True)

    def _server_ready(self, request: Any, call: Call) -> Any:
        return message_class("inference.ServerReadyResponse")(ready=self._engine.ready())

    def _model_ready(self, request: Any, call: Call) -> Any:
        ready = self._engine.model_ready(request.name, request.version)
        return message_class("inference.ModelReadyResponse")(ready=ready)

    def _server_metadata(self, request: Any, call: Call) -> Any:
        settings = self._parts.settings
        extensions = metadata.working_extensions(shared_memory=settings.allow_shared_memory)
        document = metadata.server_metadata(extensions)
        return metadata.to_message("inference.ServerMetadataResponse", document)

    def _model_metadata(self, request: Any, call: Call) -> Any:
        spec = self._engine.describe(request.name, request.version)
        document = metadata.model_metadata(spec, self._engine.versions(request.name), self._limits)
        # The field is a map of texts in the Open Inference Protocol and a map of messages in MLServer's proto, whose
        # clients cannot read an answer with texts at all.
        document.pop("properties", None)
        return metadata.to_message("inference.ModelMetadataResponse", document)

    def _model_config(self, request: Any, call: Call) -> Any:
        document = metadata.model_config(self._engine.describe(request.name, request.version))
        return metadata.to_message("inference.ModelConfigResponse", {"config": document})

    def _model_statistics(self, request: Any, call: Call) -> Any:
        found = self._parts.statistics.models(request.name, request.version)
        return metadata.to_message(
            "inference.ModelStatisticsResponse", metadata.model_statistics(found)
        )

    def _repository_index(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        models = repository.index(self._engine, ready_only=request.ready)
        return metadata.to_message("inference.RepositoryIndexResponse", {"models": models})

    def _repository_model_load(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        repository.load(self._engine, request.model_name, _values(request.parameters))
        return message_class("inference.RepositoryModelLoadResponse")()

    def _repository_model_unload(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        repository.unload(self._engine, request.model_name, _values(request.parameters))
        return message_class("inference.RepositoryModelUnloadResponse")()

    def _log_settings(self, request: Any, call: Call) -> Any:
        document = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
            for name, value in request.settings.items()
        }
        answer = message_class("inference.LogSettingsResponse")()
        for name, value in self._parts.changeable.log(document).items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(answer.settings[name], kind, value)
        return answer

    def _trace_setting(self, request: Any, call: Call) -> Any:
        if request.model_name:
            self._engine.spec(request.model_name, "")
        # A setting without a value is to be as it was at the start.
        document = {
            name: _one_or_all(list(value.value)) for name, value in request.settings.items()
        }
        answer = message_class("inference.TraceSettingResponse")()
        for name, value in self._parts.changeable.trace(request.model_name, document).items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer


def _one_or_all(values: list[str]) -> str | list[str] | None:
    if len(values) > 1:
        return values
    return values[0] if values else None


def _shared_memory(
    kind: str, regions: SharedMemory | CudaMemory, memory_user: MemoryUserOf
) -> tuple[Behavior, Behavior, Behavior]:
    """Return the status, register and unregister calls of a kind of shared memory."""

    def made(call: str) -> Any:
        return message_class(f"inference.{kind}SharedMemory{call}Response")()

    def status(request: Any, call: Call) -> Any:
        answer = made("Status")
        for found in regions.status(request.name):
            entry = answer.regions[found.name]
            entry.name, entry.key = found.name, found.key
            entry.offset, entry.byte_size = found.offset, found.byte_size
        return answer

    def register(request: Any, call: Call) -> Any:
        if isinstance(regions, CudaMemory):
            regions.register(request.name)
        place = request.offset, request.byte_size
        regions.register(request.name, request.key, *place, memory_user(call))
        return made("Register")

    def unregister(request: Any, call: Call) -> Any:
        regions.unregister(request.name)
        return made("Unregister")

    return status, register, unregister


def _refuse_shared_memory(request: Any, call: Call) -> Any:
    raise NotImplementedByKsrv(_OFF)


def _check_repository(name: str) -> None:
    if name:
        raise NotImplementedByKsrv(
            f"repository {quote(name)}: repositories have no names here; leave repository_name empty"
        )


def _values(parameters: Any) -> dict[str, Any]:
    """Return the values of a load or unload call's parameters; None where one has none."""
    return {
        name: getattr(value, choice) if (choice := value.WhichOneof("parameter_choice")) else None
        for name, value in parameters.items()
    }
