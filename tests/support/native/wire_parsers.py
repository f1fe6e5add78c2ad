"""The parsers of native/http without a server: request heads, chunked bodies and headers of the PROXY protocol."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.support.paths import ROOT

SOURCES = (
    "tests/support/native/wire_parsers.cpp",
    "native/http/request_head.cpp",
    "native/http/chunked_body.cpp",
    "native/http/proxy_header.cpp",
    "native/base/own_host.cpp",
)
VERDICTS = ("incomplete", "native", "app", "refused")
ROUTES = ("none", "infer", "live", "ready", "server", "metadata", "model ready")
CHUNK_FAULTS = ("none", "size", "size bits", "end", "count", "length", "trailer")
PROXY_VERSIONS = ("off", "v1", "v2", "auto")


@cache
def parsers() -> ctypes.CDLL:
    """Build the parsers as a library, and load it."""
    library = ROOT / "build" / "programs" / f"wire_parsers-{os.getpid()}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [*os.environ.get("CXX", "g++").split(), "-std=c++17", "-O1", "-fPIC", "-shared"]
    command += ["-fwrapv", "-Inative", *SOURCES, "-o", str(library)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    return loaded


class HeadRules(ctypes.Structure):
    """Limits on heads, with the names and defaults of `ksrv._native.http.request_head.HeadRules`."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("body", "json", "head", "fields", "request_line", "field_size")
        ),
        ("chunks", ctypes.c_uint64),
        ("longest_head", ctypes.c_uint64),
        ("compression", ctypes.c_bool),
        ("origins", ctypes.c_bool),
        ("own_hosts", ctypes.c_bool),
        ("mount", ctypes.c_char * 129),
    )

    def __init__(self, *, mount: str = "", **values: int) -> None:
        defaults = {
            "json": 2**64 - 1,
            "head": 16384,
            "fields": 100,
            "request_line": 4094,
            "field_size": 8190,
            "chunks": 65536,
            "longest_head": 65536,
        }
        super().__init__(mount=mount.encode(), **(defaults | values))


class _Classified(ctypes.Structure):
    _fields_ = (
        ("fault", ctypes.c_char_p),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "verdict", "route", "name", "name_length", "version", "version_length", "length",
                "content_length", "json_length",
            )
        ),
        *(
            (name, ctypes.c_bool)
            for name in (
                "has_json_length", "close", "http_1_0", "chunked", "expects_continue", "question",
            )
        ),
    )  # fmt: skip


def _sizes(pieces: Iterable[int], total: int) -> Any:
    """The sizes of the reads: `pieces`, and then the rest."""
    sizes = [*pieces, total]
    return (ctypes.c_size_t * len(sizes))(*sizes), ctypes.c_size_t(len(sizes))


def classify_head(data: bytes, rules: HeadRules, pieces: Iterable[int] = ()) -> SimpleNamespace:
    """Classify the first bytes of a message, after reads of these sizes.

    Returns:
        The fields of `Head` in native/http/request_head.hpp, and `verdict`, one of `VERDICTS`.
    """
    found = _Classified()
    total = ctypes.c_size_t(len(data))
    parsers().classify(
        data, total, *_sizes(pieces, len(data)), ctypes.byref(rules), ctypes.byref(found)
    )
    said = SimpleNamespace(**{field[0]: getattr(found, field[0]) for field in found._fields_})
    said.verdict, said.route = VERDICTS[said.verdict], ROUTES[said.route]
    said.fault = said.fault.decode().replace("_", " ")
    said.name = data[said.name : said.name + said.name_length].decode()
    said.version = data[said.version : said.version + said.version_length].decode()
    if not said.has_json_length:
        said.json_length = None
    return said


def read_chunks(
    data: bytes,
    pieces: Iterable[int] = (),
    *,
    most_chunks: int = 65536,
    most_bytes: int = 1048576,
) -> tuple[str, int, bytes]:
    """Decode a chunked body that arrives in pieces.

    Returns:
        "incomplete", "whole" or a fault; the number of bytes read; the contents.
    """
    contents = ctypes.create_string_buffer(len(data) + 1)
    length, read, ended = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_bool()
    fault = parsers().decode(
        data,
        ctypes.c_size_t(len(data)),
        *_sizes(pieces, len(data)),
        ctypes.c_size_t(most_chunks),
        ctypes.c_uint64(most_bytes),
        contents,
        ctypes.byref(length),
        ctypes.byref(read),
        ctypes.byref(ended),
    )
    state = CHUNK_FAULTS[fault] if fault >= 0 else "whole" if ended.value else "incomplete"
    return state, read.value, contents.raw[: length.value]


def read_proxy_header(
    data: bytes, versions: str = "auto"
) -> str | tuple[int, tuple[str, int] | None]:
    """Parse the first bytes of a connection.

    Returns:
        "incomplete", "absent", or a sentence about the fault. For a whole header, its length and the client's
        address; None if the proxy connects on its behalf.
    """
    header, names_client, fault = ctypes.c_size_t(), ctypes.c_bool(), ctypes.c_char_p()
    peer = ctypes.create_string_buffer(28)
    verdict = parsers().read_proxy(
        data,
        ctypes.c_size_t(len(data)),
        PROXY_VERSIONS.index(versions),
        ctypes.byref(header),
        ctypes.byref(names_client),
        peer,
        ctypes.byref(fault),
    )
    if verdict in (0, 2):
        return "absent" if verdict else "incomplete"
    if fault.value is not None:
        return fault.value.decode()
    raw = peer.raw
    family = int.from_bytes(raw[:2], "little")
    place = slice(4, 8) if family == socket.AF_INET else slice(8, 24)
    port = raw[2] << 8 | raw[3]
    return header.value, (
        (socket.inet_ntop(family, raw[place]), port) if names_client.value else None
    )
