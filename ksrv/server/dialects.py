"""The dialects of this process. No other module of the server imports `ksrv.dialects`."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ksrv.dialects import DialectError, load_dialects
from ksrv.server.settings import SettingsError

if TYPE_CHECKING:
    import falcon

    from ksrv.dialects.dialect import Dialect, ErrorForm, ForeignSettings
    from ksrv.engine.engine import Engine
    from ksrv.repository.format import Formats
    from ksrv.server.grpc.services import Method, Services

__all__ = [
    "ErrorForm",
    "ForeignSettings",
    "add_routes",
    "formats",
    "grpc_methods",
    "installed",
    "path_hint",
]


@cache
def installed() -> "tuple[Dialect, ...]":
    """Return the dialects, which are imported once.

    Raises:
        SettingsError: A dialect cannot be used.
    """
    try:
        return load_dialects()
    except DialectError as error:
        raise SettingsError(str(error)) from error


def formats(files: "Mapping[str, ForeignSettings]" = MappingProxyType({})) -> "Formats":
    """Return the readers of other servers' models.

    Args:
        files: The settings files by the setting that names them; the readers use their defaults.
    """
    from ksrv.repository.format import Formats  # ksrv serve --help needs no numpy

    return Formats(
        files[one.settings_key].format if one.settings_key in files else one.format
        for one in installed()
    )


def add_routes(app: "falcon.App[Any, Any]", **shared: Any) -> "list[ErrorForm]":
    """Add the routes of all dialects to the app.

    Args:
        shared: The other fields of `ksrv.dialects.dialect.AppParts`.

    Returns:
        The forms in which dialects answer failures.
    """
    from ksrv.dialects.dialect import AppParts

    parts = AppParts(error_forms=[], **shared)
    for one in installed():
        one.add_routes(app, parts)
    return parts.error_forms


def path_hint(first_segment: str, served: Mapping[str, Any]) -> str:
    """Return what the 404 of an unknown path says of other servers' routes; see `Dialect.path_hint`."""
    return "".join(one.path_hint(first_segment, served) for one in installed())


def grpc_methods(services: "Services", engine: "Engine") -> "dict[str, Method]":
    """Return the gRPC methods of all dialects by their paths."""
    found: dict[str, Method] = {}
    for one in installed():
        found |= one.grpc_methods(services, engine)
    return found
