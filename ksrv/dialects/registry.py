"""Lists the dialects of this process, and asks each of them in turn; see `Dialect` for what a dialect can add.

The core imports no other module of `ksrv.dialects`. Functions import what they need when they are called, so that
`ksrv serve --help` stays quick.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ksrv.server.settings import SettingsError

if TYPE_CHECKING:
    import falcon

    from ksrv.dialects.dialect import Dialect, ErrorForm, ForeignSettings
    from ksrv.engine.engine import Engine
    from ksrv.model.config import ModelSource
    from ksrv.protocol.shared_memory import SharedMemory
    from ksrv.repository.format import Formats
    from ksrv.request import InferRequest, RequestHandle
    from ksrv.server.credentials import Access
    from ksrv.server.grpc.services import Method, Services
    from ksrv.server.rest.json_resource import DocumentReader
    from ksrv.server.settings import ServerSettings
    from ksrv.server.shared.parts import ServerParts, SettingChange
    from ksrv.statistics import ModelStatistics

GROUP = "ksrv.dialects"
"""The group of entry points by which third parties register dialects."""

BUILT_IN = (
    "kserve_v1",
    "torchserve",
    "triton",
    "openvino",
    "openai",
    "mlserver",
    "tabular",
    "mlflow",
    "tfserving",
)
"""The folders of the built-in dialects. Routes of a later dialect replace the same routes of an earlier dialect."""


def load_dialects() -> "tuple[Dialect, ...]":
    """Return the built-in dialects, then the dialects of third parties.

    Raises:
        SettingsError: A dialect cannot be imported, is not a `Dialect`, or has the name of another dialect.
    """
    from ksrv.dialects.dialect import Dialect  # ksrv serve --help needs no web framework

    points = [EntryPoint(name, f"ksrv.dialects.{name}.dialect:DIALECT", GROUP) for name in BUILT_IN]
    found: dict[str, Dialect] = {}
    for point in (*points, *entry_points(group=GROUP)):
        package = f" of the package {point.dist.name}" if point.dist is not None else ""
        named = f"the dialect {point.name!r}{package} ({point.value})"
        remedy = "correct or uninstall the package"
        try:
            dialect = point.load()
        except Exception as error:
            raise SettingsError(
                f"{named} cannot be imported: {type(error).__name__}: {error}; {remedy}"
            ) from error
        if not isinstance(dialect, Dialect):
            raise SettingsError(
                f"{named} is a {type(dialect).__name__}; expected an instance of ksrv.dialects.dialect.Dialect; {remedy}"
            )
        if dialect.name in found:
            raise SettingsError(
                f"{named} has the name {dialect.name!r} of another dialect; expected a name that is not taken; {remedy}"
            )
        found[dialect.name] = dialect
    return tuple(found.values())


installed = cache(load_dialects)
"""Returns the dialects, which are imported once; see `load_dialects`."""


def formats(files: "Mapping[str, ForeignSettings]" = MappingProxyType({})) -> "Formats":
    """Return the readers of other servers' models.

    Args:
        files: The contents of other servers' settings files, by the setting that names the file. A dialect with such a
            file reads models with the defaults of that file.
    """
    from ksrv.repository.format import Formats  # ksrv serve --help needs no numpy

    return Formats(
        files[dialect.settings_key].format if dialect.settings_key in files else dialect.format
        for dialect in installed()
    )


def read_foreign_settings(values: Mapping[str, Any]) -> "dict[str, ForeignSettings]":
    """Return the settings files of other servers, by the setting that names the file.

    Args:
        values: The values of settings by key.

    Raises:
        SettingsError: A file cannot be read, or a value in it is not possible.
    """
    found = {}
    for dialect in installed():
        if named := values.get(dialect.settings_key):
            try:
                found[dialect.settings_key] = dialect.read_settings(Path(named))
            except ValueError as error:
                raise SettingsError(f"setting {dialect.settings_key!r}: {error}") from error
    return found


def add_routes(
    app: "falcon.App[Any, Any]", parts: "ServerParts", read_document: "DocumentReader"
) -> "list[ErrorForm]":
    """Add the routes of all dialects to the app.

    Returns:
        The forms in which dialects answer failures.
    """
    from ksrv.dialects.dialect import AppParts

    shared = {field.name: getattr(parts, field.name) for field in fields(parts)}
    app_parts = AppParts(read_document=read_document, error_forms=[], **shared)
    for dialect in installed():
        dialect.add_routes(app, app_parts)
    return app_parts.error_forms


def extensions(settings: "ServerSettings") -> tuple[str, ...]:
    """Return the names of the extensions of KServe v2 that the server has."""
    from ksrv.protocol.metadata import EXTENSIONS

    return sum((dialect.extensions(settings) for dialect in installed()), tuple(EXTENSIONS))


def check_settings(settings: "ServerSettings", *, loopback: bool) -> None:
    """Refuse settings that a dialect cannot serve with; see `Dialect.check_settings`."""
    for dialect in installed():
        dialect.check_settings(settings, loopback=loopback)


def apply_setting(change: "SettingChange") -> None:
    """Change a setting of a dialect in this process; see `Dialect.apply_setting`."""
    for dialect in installed():
        dialect.apply_setting(change)


def shared_memory(settings: "ServerSettings", access: "Access") -> "SharedMemory | None":
    """Return the first dialect's memory that requests may name for their tensors; see `Dialect.shared_memory`."""
    found = (dialect.shared_memory(settings, access) for dialect in installed())
    return next((memory for memory in found if memory is not None), None)


def metric_lines(compat: Sequence[str], models: "Sequence[ModelStatistics]") -> Iterator[str]:
    """Yield the lines of the models' metrics under other servers' names; see `Dialect.metric_lines`.

    Args:
        compat: The setting `metrics_compat`.
    """
    for dialect in installed():
        if dialect.metrics_compat in compat:
            yield from dialect.metric_lines(models)


def path_hint(first_segment: str, served: Mapping[str, Any]) -> str:
    """Return what the 404 of an unknown path says of other servers' routes; see `Dialect.path_hint`."""
    return "".join(dialect.path_hint(first_segment, served) for dialect in installed())


def grpc_methods(services: "Services", engine: "Engine") -> "dict[str, Method]":
    """Return the gRPC methods of all dialects by path."""
    found: dict[str, Method] = {}
    for dialect in installed():
        found |= dialect.grpc_methods(services, engine)
    return found


def server_call(engine: "Engine", request: "InferRequest") -> "RequestHandle":
    """Begin a call of a handler to the server itself, in the dialect that serves it; see `Dialect.server_call`.

    A dialect is always found, because Triton's takes every call that an earlier dialect does not take.
    """
    return next(filter(None, (dialect.server_call(engine, request) for dialect in installed())))


def forget_modules(sources: "Iterable[ModelSource]") -> None:
    """Remove the modules of models' folders from `sys.modules`, and the folders from `sys.path`.

    Only models that a dialect's runner loads are affected, because only such runners import from a model's folder by
    bare name.
    """
    from ksrv.model.config import ModelConfig

    default = ModelConfig().runner
    foreign = [source for source in sources if source.config and source.config.runner != default]
    for folder in [str(source.folder) for source in foreign]:
        sys.path[:] = [entry for entry in sys.path if entry != folder]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
