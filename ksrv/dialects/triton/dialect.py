"""The dialect of Triton Inference Server: its model repositories, and its extensions of KServe v2."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ksrv.dialects.dialect import AppParts, Dialect
from ksrv.dialects.triton.config.ensembles import check_ensembles
from ksrv.dialects.triton.config.model_config import (
    CONFIG_NAME,
    is_triton_model,
    may_be_configured,
    read_model,
)
from ksrv.repository.format import Format
from ksrv.server.shared.parts import SettingChange

if TYPE_CHECKING:
    import falcon

    from ksrv.dialects.triton.extensions.shared_memory.tensors import ServerMemory
    from ksrv.engine.engine import Engine
    from ksrv.request import InferRequest, RequestHandle
    from ksrv.server.credentials import Access
    from ksrv.server.grpc.services import Method, Services
    from ksrv.server.settings import ServerSettings
    from ksrv.statistics import ModelStatistics

EXTENSIONS = ("model_repository", "model_configuration", "statistics", "generate")


class _Folders:
    """Reads folders of Triton models; see `ksrv.repository.format.FolderReader`."""

    mark = CONFIG_NAME
    is_model = staticmethod(is_triton_model)
    may_be_configured = staticmethod(may_be_configured)
    read = staticmethod(read_model)


class Triton(Dialect):
    """The dialect. Models of a Triton repository are served without conversion."""

    name = metrics_compat = "triton"
    format = Format(
        folders=_Folders(),
        check=check_ensembles,
        unread={
            "model.py": "model.py is not read: a model.py of Triton's Python backend is in a version folder, such as "
            "1/model.py, and has a class TritonPythonModel"
        },
    )

    def extensions(self, settings: "ServerSettings") -> tuple[str, ...]:
        """See `Dialect.extensions`."""
        return (*EXTENSIONS, "system_shared_memory") if settings.allow_shared_memory else EXTENSIONS

    def check_settings(self, settings: "ServerSettings", *, loopback: bool) -> None:
        """See `Dialect.check_settings`."""
        if settings.allow_shared_memory:
            from ksrv.dialects.triton.extensions.shared_memory.tensors import check_settings

            check_settings(settings, loopback=loopback)

    def apply_setting(self, change: SettingChange) -> None:
        """See `Dialect.apply_setting`."""
        from ksrv.dialects.triton.extensions.changeable_settings import apply

        apply(change)

    def shared_memory(self, settings: "ServerSettings", access: "Access") -> "ServerMemory | None":
        """See `Dialect.shared_memory`."""
        if not settings.allow_shared_memory:
            return None
        from ksrv.dialects.triton.extensions.shared_memory.regions import Regions
        from ksrv.dialects.triton.extensions.shared_memory.tensors import ServerMemory

        return ServerMemory(Regions(settings.limits.regions), access)

    def server_call(self, engine: "Engine", request: "InferRequest") -> "RequestHandle":
        """See `Dialect.server_call`; only models of the Python backend make such calls."""
        from ksrv.dialects.triton.python_backend.server_calls import begin_server_call

        return begin_server_call(engine, request)

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """See `Dialect.add_routes`."""
        from ksrv.dialects.triton.extensions.calls import add_routes

        add_routes(app, parts)

    def metric_lines(self, models: "Sequence[ModelStatistics]") -> "Iterator[str]":
        """See `Dialect.metric_lines`."""
        from ksrv.dialects.triton.extensions.metric_names import metric_lines

        return metric_lines(models)

    def grpc_methods(self, services: "Services", engine: "Engine") -> "Mapping[str, Method]":
        """See `Dialect.grpc_methods`."""
        from ksrv.dialects.triton.extensions.calls import grpc_methods

        return grpc_methods(services)


DIALECT = Triton()
