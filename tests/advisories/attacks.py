"""The attacks of advisories over HTTP/1.1, as the bytes that a client sends.

Each attack has the form that its advisory describes. ksrv's tests and the programs in `peers/` send the same bytes.
"""

import gzip
import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CRLF = b"\r\n"
CHUNKED = "Transfer-Encoding: chunked"
MIB = 1 << 20
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A second request, in bytes that belong to the body or the trailers of the first."""


def request(path: str, *fields: str, body: bytes = b"", method: str = "POST") -> bytes:
    """A request whose framing is in `fields`."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    return "\r\n".join(lines).encode() + CRLF + CRLF + body


def sized(path: str, body: bytes, *fields: str) -> bytes:
    """A request with a Content-Length."""
    return request(path, f"Content-Length: {len(body)}", *fields, body=body)


def announcing(length: str) -> Callable[[str], bytes]:
    return lambda path: request(path, f"Content-Length: {length}")


def form(path: str, body: bytes, boundary: str = "b") -> bytes:
    return sized(path, body, f"Content-Type: multipart/form-data; boundary={boundary}")


def part(content: bytes, *, name: str = 'name="x"', more: str = "") -> bytes:
    """A form with one part."""
    head = f"--b\r\nContent-Disposition: form-data; {name}{more}\r\n\r\n".encode()
    return head + content + b"\r\n--b--\r\n"


def inflating(mebibytes: int) -> bytes:
    """A gzip file that inflates to zeros, a thousand times its size."""
    zeros = bytes(MIB)
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = made.compress(zeros) + made.flush(zlib.Z_FULL_FLUSH)  # the same for each MiB
    check = 0
    for _ in range(mebibytes):
        check = zlib.crc32(zeros, check)
    head = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return head + block * mebibytes + b"\x03\0" + struct.pack("<II", check, mebibytes * MIB)


CUT_GZIP = gzip.compress(os.urandom(2 * MIB), 1)[:-9]


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self._path), "w")


def pickled(path: Path, protocol: int = 2) -> bytes:
    return pickle.dumps(Touch(path), protocol)


def torch_saved(path: Path) -> bytes:
    """The older format of torch.save: a magic number, a version, and pickled values."""
    parts = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, Touch(path)):
        pickle.dump(value, parts, 2)
    return parts.getvalue()


@dataclass(frozen=True)
class Attack:
    """Bytes that a client sends, and how ksrv answers.

    Attributes:
        numbers: The advisories, separated by spaces.
        made: Makes the bytes for a path that takes POST.
        statuses: The statuses of all answers, in their order; an attack that is accepted has no 400.
        said: A part of the last error.
    """

    numbers: str
    made: Callable[[str], bytes]
    statuses: tuple[int, ...] = (400,)
    said: str = ""


HTTP = [
    # -- where a message ends: smuggling -----------------------------------------------------------
    Attack(
        "CVE-2024-1135",
        lambda path: request(
            path, "Content-Length: 4", f"{CHUNKED},gzip", body=b"73\r\n" + SMUGGLED
        ),
        said="Transfer-Encoding",
    ),
    Attack(
        "CVE-2024-6827",
        lambda path: request(
            path, "Content-Length: 4", "Transfer-Encoding: xchunked", body=b"73\r\n" + SMUGGLED
        ),
        said="Transfer-Encoding",
    ),
    Attack(
        "CVE-2025-69224",  # lower() makes a k of the Kelvin sign
        lambda path: request(path, "Transfer-Encoding: chun\u212aed", body=b"2\r\n{}\r\n0\r\n\r\n"),
        said="Transfer-Encoding",
    ),
    Attack(
        "CVE-2025-43859",  # any two bytes end a chunk
        lambda path: request(path, CHUNKED, body=b"5\r\nAAAAAXX2\r\n45\r\n0\r\n\r\n"),
        said="chunk",
    ),
    Attack(
        "CVE-2024-52304",
        lambda path: request(path, CHUNKED, body=b"2;\nxx\r\n{}\r\n0\r\n\r\n"),
        said="chunk",
    ),
    Attack(
        "CVE-2025-53643 CVE-2025-58068",
        lambda path: request(path, CHUNKED, body=b"2\r\n{}\r\n0\r\nX: y\r\n" + SMUGGLED),
        said="trailer",
    ),
    Attack(
        "CVE-2024-49768",  # whole blocks are read ahead, behind a request that ends the connection
        lambda path: (
            sized(path, b"{" + b" " * 8000) + request(path, "Content-Length: x") + SMUGGLED
        ),
        (400, 400),
        "Content-Length",
    ),
    *[
        Attack(
            f"CVE-2025-33201 {length}",
            announcing(length),
            statuses,
            "--limits-body" if statuses == (413,) else "Content-Length",
        )
        for length, statuses in {
            "999999999999999999": (413,),
            "18446744073709551617": (400,),
            "-1": (400,),
            "+2": (400,),
            "2, 3": (400,),
            "\u0662": (400,),  # a digit to Python's int
        }.items()
    ],
    # -- memory and time -----------------------------------------------------------------------------
    Attack(
        "CVE-2025-23310 CVE-2025-23311 CVE-2025-69229",
        lambda path: request(path, CHUNKED, body=b"1\r\nA\r\n" * 400_000 + b"0\r\n\r\n"),
        said="--limits-chunks",
    ),
    Attack(
        "CVE-2025-48956",
        lambda path: request(path, "X: " + "a" * (16 * MIB), method="GET"),
        (431,),
        "--limits-head",
    ),
    Attack(
        "CVE-2025-67725",
        lambda path: request(path, *["X: a"] * 400_000, method="GET"),
        (431,),
        "--limits-head",
    ),
    Attack(
        "CVE-2025-69223",
        lambda path: sized(path, inflating(1024), "Content-Encoding: gzip"),
        (413,),
        "--limits-",
    ),
    Attack(
        "CVE-2025-66418",
        lambda path: sized(path, b"{}", "Content-Encoding: " + "gzip, " * 500 + "gzip"),
        (415,),
        "Content-Encoding",
    ),
    Attack(
        "triton#8764",
        lambda path: sized(path, CUT_GZIP, "Content-Encoding: gzip") * 20,
        (400,) * 20,
        "gzip",
    ),
    Attack(
        "CVE-2025-62727",
        lambda path: request(path, "Range: bytes=" + "1" * 500_000, method="GET"),
        (431,),
        "--limits-head",
    ),
    # -- forms ---------------------------------------------------------------------------------------
    Attack(
        "CVE-2024-47874 CVE-2024-49767",
        lambda path: form(path, part(b"1" * (24 * MIB))),
        said="1048576 bytes",
    ),
    Attack(
        "CVE-2023-46136",
        lambda path: form(path, part(b"\r" + b"a" * (12 * MIB), more='; filename="a"')),
    ),
    Attack("CVE-2024-53981", lambda path: form(path, b"\r\n" * MIB + part(b"1") + b"a" * MIB)),
    Attack("CVE-2024-9056", lambda path: form(path, b"--b" + b"-" * (4 * MIB) + b"\r\n")),
    Attack(
        "CVE-2024-24762",
        lambda path: sized(
            path, part(b"1"), 'Content-Type: multipart/form-data; !="' + "\\" * 8000
        ),
    ),
    Attack(
        "CVE-2025-67726",
        lambda path: form(path, part(b"1", name=";" * MIB)),
    ),
    Attack(
        "CVE-2025-47287",
        lambda path: form(path, b"--b\r\nX: y\r\n\r\na\r\n" * 100_000 + b"--b--\r\n"),
    ),
]


def picture(kind: str) -> bytes:
    """The first bytes of a file that an image library would decode."""
    return {
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 \0\0\0\0jp2 ",
        "MP4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom",
        "WebP": b"RIFF\x24\0\0\0WEBPVP8L\x18\0\0\0\x2f",
        "TIFF": b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 256, 4, 1, 1 << 31),
        "GIF": b"GIF89a\xff\xff\xff\xff\x80\0\0",
        "EXR": b"v/1\x01\x02\0\0\0",
    }[kind] + bytes(4096)
