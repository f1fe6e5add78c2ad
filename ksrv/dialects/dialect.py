"""The interface of a dialect: the files, routes and settings of another server that ksrv understands.

A third party registers a dialect by an entry point of the group `ksrv.dialects` that names an instance of `Dialect`:

    [project.entry-points."ksrv.dialects"]
    csv = "csv_dialect:DIALECT"
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ksrv.errors import KsrvError
from ksrv.repository.format import Format
from ksrv.server.shared.parts import ServerParts, SettingChange

if TYPE_CHECKING:
    import falcon

    from ksrv.engine.engine import Engine
    from ksrv.protocol.shared_memory import SharedMemory
    from ksrv.request import InferRequest, RequestHandle
    from ksrv.server.credentials import Access
    from ksrv.server.grpc.services import Method, Services
    from ksrv.server.rest.json_resource import DocumentReader
    from ksrv.server.settings import ServerSettings
    from ksrv.statistics import ModelStatistics

ErrorForm: TypeAlias = (
    "Callable[[falcon.Request, falcon.Response, KsrvError | falcon.HTTPError, bool], bool]"
)
"""Answers a failure on a route of the dialect and returns True; returns False for other paths.

The last argument is True if the failure was an unexpected exception, whose details are in the log.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppParts(ServerParts):
    """The parts of the REST app that all routes share.

    Attributes:
        read_document: Reads the JSON object in the body of a management call.
        error_forms: A dialect whose errors have a special form appends its `ErrorForm`.
    """

    read_document: "DocumentReader"
    error_forms: list[ErrorForm]


class ForeignSettings(Protocol):
    """The contents of another server's settings file."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Server settings by dotted key."""

    @property
    def format(self) -> Format:
        """The dialect's readers, with the file's defaults for models."""

    def lines(self) -> list[str]:
        """Return the report on the file, one key a line."""


class ImportedModel(Protocol):
    """A model of another server that `ksrv import` can write as a folder with a model.yaml."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """The model's version."""

    def lines(self) -> list[str]:
        """Return the report on the model's settings, one key a line."""

    def write(self, repository: Path) -> Path:
        """Write the model's folder into a model repository, and return the folder.

        Args:
            repository: The model repository; created if it is missing.

        Raises:
            ValueError: ksrv does not serve the model, or the folder exists.
            OSError: The folder cannot be written.
        """


class Dialect:
    """The support for another server. Override the methods that the dialect needs; the defaults add nothing.

    Import the modules of routes, gRPC methods and settings inside the methods, so that a command that needs only the
    readers of files does not import a web framework.

    Attributes:
        name: The name of the dialect.
        format: The readers of the other server's files and folders.
        metrics_compat: The value of the setting `metrics_compat` that shows metrics under the other server's names, or "".
        settings_key: The setting in `ksrv.server.settings` that names the other server's settings file, or "".
    """

    name = ""
    format = Format()
    metrics_compat = ""
    settings_key = ""

    def add_routes(self, app: "falcon.App[Any, Any]", parts: AppParts) -> None:
        """Add REST routes to the app. A route that exists already is replaced.

        Args:
            app: The app; `app.add_route(path, resource, needs=...)` takes `ksrv.server.rest.route_guard.Needs`.
            parts: The shared parts of the app, for the resources.
        """

    def path_hint(self, first_segment: str, served: Mapping[str, Any]) -> str:
        """Return a sentence about this dialect for the 404 of an unknown path, or "".

        Args:
            first_segment: The first segment of the unknown path.
            served: The served routes, by their path templates.
        """
        return ""

    def metric_lines(self, models: "Sequence[ModelStatistics]") -> Iterable[str]:
        """Return the lines of the metrics page that show the models' metrics under the other server's names."""
        return ()

    def grpc_methods(self, services: "Services", engine: "Engine") -> "Mapping[str, Method]":
        """Return the methods of the gRPC services by path."""
        return {}

    def extensions(self, settings: "ServerSettings") -> tuple[str, ...]:
        """Return the names of the extensions of KServe v2 that this dialect adds to the server."""
        return ()

    def check_settings(self, settings: "ServerSettings", *, loopback: bool) -> None:
        """Refuse settings that this dialect cannot serve with.

        Args:
            loopback: Whether only this machine can reach the server.

        Raises:
            SettingsError: A setting cannot have its value.
        """

    def apply_setting(self, change: SettingChange) -> None:
        """Change a setting of this dialect in this process.

        It is called in every worker, and in workers that start later.

        Args:
            change: The argument of `ServerParts.change_setting`. It may be meant for another dialect.
        """

    def shared_memory(self, settings: "ServerSettings", access: "Access") -> "SharedMemory | None":
        """Return the shared memory that requests may name for their tensors, or None if this dialect has none.

        Args:
            access: Checks which callers may use shared memory.
        """
        return None

    def server_call(self, engine: "Engine", request: "InferRequest") -> "RequestHandle | None":
        """Begin a call of a handler to the server, not to a model, such as `load_model` of Triton's Python backend.

        Args:
            request: Its parameters describe the call.

        Returns:
            The running call, or None if this dialect does not know the call. Then the next dialect is asked. Triton's
            dialect is the last: it takes every call, and fails the calls that it does not know.
        """
        return None

    def read_settings(self, path: Path) -> ForeignSettings:
        """Read the settings file that `settings_key` names.

        Raises:
            ValueError: The file cannot be read; the text names the file and the key.
        """
        raise NotImplementedError(f"the dialect {self.name} has no settings file")

    def examine(self, path: Path) -> ImportedModel | None:
        """Return a model that has to be converted for `ksrv import --to`, or None if it needs no conversion.

        Raises:
            ValueError: The file at `path` cannot be read as a model of this dialect.
        """
        return None
