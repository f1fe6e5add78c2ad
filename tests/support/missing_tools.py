"""Tests on a machine without a tool that they call: they are skipped, and the reason names the tool."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ksrv._native.grpc.grpc_server import library_version

PROGRAMS = {"cc", "curl", "g++", "git", "h2load", "node", "openssl", "unshare"}
"""Programs that tests start by name. A missing program of ksrv is a failure."""
NO_HTTP2 = "libnghttp2.so.14 cannot be loaded"
"""How a server that is to carry gRPC itself says that it cannot."""


def missing_tool(error: BaseException) -> str | None:
    """Return the tool whose absence caused an error, or None."""
    if isinstance(error, FileNotFoundError) and error.filename in PROGRAMS:
        return None if shutil.which(error.filename) else str(error.filename)
    return "libnghttp2" if NO_HTTP2 in str(error) and library_version() is None else None


def need_http2() -> None:
    """Skip a test of the native server's HTTP/2 on a machine without libnghttp2."""
    if library_version() is None:
        pytest.skip("libnghttp2 is not installed")


@contextmanager
def skipped_without_tools() -> Iterator[None]:
    """Skip the test whose setup or call is inside if it fails because a tool is not installed."""
    try:
        yield
    except Exception as error:
        tool = missing_tool(error)
        if tool is None:
            raise
        pytest.skip(f"{tool} is not installed")
