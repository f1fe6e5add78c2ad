"""Chooses the server for gRPC: the native server, which uses libnghttp2, or grpcio."""

from ksrv._native.grpc.grpc_server import library_version
from ksrv._native.tls.tls_context import why_no_tls
from ksrv.server.settings import ServerSettings, SettingsError


def is_native(settings: ServerSettings, *, encrypted: bool) -> bool:
    """Return whether the native server serves gRPC.

    Args:
        encrypted: Whether TLS is on.

    Raises:
        SettingsError: The setting asks for the native server, but a library that it needs is missing.
    """
    if settings.grpc_server == "grpcio":
        return False
    missing = ""
    if encrypted:
        missing = why_no_tls() or ""
    if library_version() is None:
        missing = "libnghttp2.so.14 cannot be loaded (Debian: apt-get install libnghttp2-14)"
    if settings.grpc_server == "native" and missing:
        raise SettingsError(f"setting 'grpc_server': the native server cannot serve: {missing}")
    return not missing


def describe(*, native: bool) -> str:
    """Return the name of the implementation, for log lines."""
    return f"native, libnghttp2 {library_version()}" if native else "grpcio"
