"""Headers of the PROXY protocol, and a slow plain-Python reader of them that knows nothing of ksrv."""

import ipaddress
import re
import socket
import struct
from typing import Any

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_MOST = 107
HEADER_MOST = 4096


def line(source: str = "192.0.2.7", target: str = "192.0.2.1", port: Any = 4711) -> bytes:
    """A header of version 1."""
    family = "TCP6" if ":" in source else "TCP4"
    return f"PROXY {family} {source} {target} {port} 443\r\n".encode()


def binary(
    source: str = "192.0.2.7",
    target: str = "192.0.2.1",
    port: int = 4711,
    *,
    command: int = 1,
    more: bytes = b"",
) -> bytes:
    """A header of version 2; `more` are its type-length-values."""
    version = 2 if ":" in source else 1
    family = socket.AF_INET6 if version == 2 else socket.AF_INET
    block = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    block += struct.pack(">HH", port, 443) + more
    return (
        SIGNATURE
        + bytes([0x20 | command, version << 4 | 1])
        + struct.pack(">H", len(block))
        + block
    )


def read(data: bytes, versions: str = "auto") -> Any:
    """Return "incomplete", "absent", "malformed", or the pair of a header's length and its address."""
    if versions in ("v2", "auto") and (data.startswith(SIGNATURE) or SIGNATURE.startswith(data)):
        return read_binary(data)
    if versions in ("v1", "auto") and (data.startswith(b"PROXY ") or b"PROXY ".startswith(data)):
        return read_line(data)
    return "absent" if data else "incomplete"


def read_line(data: bytes) -> Any:
    end = data[:LINE_MOST].find(b"\n")
    if end < 0:
        return "incomplete" if len(data) < LINE_MOST else "malformed"
    text = data[: end + 1].decode("latin-1")
    if not text.endswith("\r\n"):
        return "malformed"
    words = text[len("PROXY ") : -2].split(" ")
    if words[0] == "UNKNOWN":
        return end + 1, ("::", 0)
    kinds: dict[str, Any] = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}
    if len(words) != 5 or words[0] not in kinds:
        return "malformed"
    try:
        source, _ = (kinds[words[0]](word) for word in words[1:3])
    except ValueError:
        return "malformed"
    if "%" in words[1] + words[2]:
        return "malformed"
    if not all(re.fullmatch("0|[1-9][0-9]{0,4}", word) and int(word) < 65536 for word in words[3:]):
        return "malformed"
    family = socket.AF_INET if words[0] == "TCP4" else socket.AF_INET6
    return end + 1, (socket.inet_ntop(family, source.packed), int(words[3]))


def read_binary(data: bytes) -> Any:
    if len(data) < 16:
        return "incomplete"
    kind, place, length = struct.unpack(">BBH", data[12:16])
    if kind not in (0x20, 0x21) or 16 + length > HEADER_MOST:
        return "malformed"
    told = kind == 0x21 and place != 0
    needed = {0x11: 12, 0x21: 36, 0x31: 216}
    if told and (place not in needed or length < needed[place]):
        return "malformed"
    if len(data) < 16 + length:
        return "incomplete"
    if kind == 0x20:
        return 16 + length, None
    block = data[16:]
    if place in (0, 0x31):
        return 16 + length, ("::", 0)
    if place == 0x11:
        return 16 + length, (
            socket.inet_ntop(socket.AF_INET, block[:4]),
            *struct.unpack(">H", block[8:10]),
        )
    return 16 + length, (
        socket.inet_ntop(socket.AF_INET6, block[:16]),
        *struct.unpack(">H", block[32:34]),
    )
