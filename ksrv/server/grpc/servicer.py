"""The calls of GRPCInferenceService beside inference: state, description, repository, and refusals.

Each method takes the request message and returns the answer's message; who may call, and what an
error becomes, is decided around them (`services.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ksrv.errors import NotImplementedByKsrv, quote
from ksrv.limits import Limits
from ksrv.protocol import metadata
from ksrv.protocol.load_parameters import check_parameters, failed_load_texts, read_config
from ksrv.protocol.protobuf import message_class
from ksrv.server.changeable_settings import ChangeableSettings
from ksrv.server.grpc.calls import Behavior, Call
from ksrv.server.memory_regions import CudaMemory, MemoryUser, SharedMemory
from ksrv.server.shared.statistics import ServerStatistics

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine

MemoryUserOf: TypeAlias = Callable[[Call], MemoryUser | None]

_OFF = "shared memory is off; --allow-shared-memory switches it on"

SHARED_MEMORY = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
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
        engine: The engine that the calls describe and change.
        limits: Bounds on requests; model metadata shows them.
        changeable: The settings that calls may change.
        shared_memory: The clients' regions; None where shared memory is off.
        memory_user: Returns the user in whose name a call uses them, None for all that the server may use.
    """

    def __init__(
        self,
        engine: "Engine",
        statistics: ServerStatistics,
        limits: Limits,
        extensions: tuple[str, ...],
        changeable: ChangeableSettings,
        shared_memory: SharedMemory | None = None,
        memory_user: MemoryUserOf = lambda call: None,
    ) -> None:
        self._engine = engine
        self._statistics = statistics
        self._limits = limits
        self._extensions = extensions
        self._changeable = changeable
        self._regions = shared_memory
        self._memory_user = memory_user

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
        if self._regions is None:
            return answered | dict.fromkeys(SHARED_MEMORY, _refuse_shared_memory)
        system = _system_shared_memory(self._regions, self._memory_user)
        calls = (*system, *_cuda_shared_memory(CudaMemory()))
        return answered | dict(zip(SHARED_MEMORY, calls, strict=True))

    def _server_live(self, request: Any, call: Call) -> Any:
        return message_class("inference.ServerLiveResponse")(live=True)

    def _server_ready(self, request: Any, call: Call) -> Any:
        return message_class("inference.ServerReadyResponse")(ready=self._engine.ready())

    def _model_ready(self, request: Any, call: Call) -> Any:
        ready = self._engine.model_ready(request.name, request.version)
        return message_class("inference.ModelReadyResponse")(ready=ready)

    def _server_metadata(self, request: Any, call: Call) -> Any:
        document = metadata.server_metadata(self._extensions)
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
        found = self._statistics.models(request.name, request.version)
        return metadata.to_message(
            "inference.ModelStatisticsResponse", metadata.model_statistics(found)
        )

    def _repository_index(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        answer = message_class("inference.RepositoryIndexResponse")()
        for state in self._engine.index(ready_only=request.ready):
            answer.models.add(
                name=state.name, version=state.version, state=state.state, reason=state.reason
            )
        return answer

    def _repository_model_load(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        with failed_load_texts(request.model_name):
            self._engine.load(request.model_name, read_config(_values(request.parameters)))
        return message_class("inference.RepositoryModelLoadResponse")()

    def _repository_model_unload(self, request: Any, call: Call) -> Any:
        _check_repository(request.repository_name)
        check_parameters(_values(request.parameters))
        self._engine.unload(request.model_name)
        return message_class("inference.RepositoryModelUnloadResponse")()

    def _log_settings(self, request: Any, call: Call) -> Any:
        document = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
            for name, value in request.settings.items()
        }
        answer = message_class("inference.LogSettingsResponse")()
        for name, value in self._changeable.log(document).items():
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
        for name, value in self._changeable.trace(request.model_name, document).items():
            answer.settings[name].value.extend([value] if isinstance(value, str) else value)
        return answer


def _one_or_all(values: list[str]) -> str | list[str] | None:
    if len(values) > 1:
        return values
    return values[0] if values else None


def _system_shared_memory(
    regions: SharedMemory, memory_user: MemoryUserOf
) -> tuple[Behavior, Behavior, Behavior]:
    """Return the status, register and unregister calls of system shared memory."""

    def status(request: Any, call: Call) -> Any:
        answer = message_class("inference.SystemSharedMemoryStatusResponse")()
        for found in regions.status(request.name):
            entry = answer.regions[found.name]
            entry.name, entry.key = found.name, found.key
            entry.offset, entry.byte_size = found.offset, found.byte_size
        return answer

    def register(request: Any, call: Call) -> Any:
        place = request.offset, request.byte_size
        regions.register(request.name, request.key, *place, memory_user(call))
        return message_class("inference.SystemSharedMemoryRegisterResponse")()

    def unregister(request: Any, call: Call) -> Any:
        regions.unregister(request.name)
        return message_class("inference.SystemSharedMemoryUnregisterResponse")()

    return status, register, unregister


def _cuda_shared_memory(regions: CudaMemory) -> tuple[Behavior, Behavior, Behavior]:
    """Return the status, register and unregister calls of CUDA shared memory."""

    def status(request: Any, call: Call) -> Any:
        regions.status(request.name)
        return message_class("inference.CudaSharedMemoryStatusResponse")()

    def register(request: Any, call: Call) -> Any:
        regions.register(request.name)

    def unregister(request: Any, call: Call) -> Any:
        regions.unregister(request.name)
        return message_class("inference.CudaSharedMemoryUnregisterResponse")()

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
