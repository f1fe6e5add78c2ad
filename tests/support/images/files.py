"""Encoded pictures for the tests: every kind of file that a client may send, made on the spot."""

import functools
import io
import struct
import zlib

import cv2
import numpy as np
from PIL import Image


@functools.lru_cache(maxsize=4)
def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """A picture with slopes, edges and noise, so that every resize filter shows its difference."""
    rng = np.random.default_rng(seed)
    y, x = np.ogrid[0:height, 0:width]
    picture = rng.normal(0, 8, (height, width, channels))
    for c in range(channels):
        waves = 128 + 100 * np.sin(x / 7 + c) * np.cos(y / 5 - c)
        picture[..., c] += waves + ((x // 4 + y // 3) % 2) * 20
    made = picture.clip(0, 255, out=picture).astype(np.uint8)
    made.flags.writeable = False  # other callers get the same array
    return made


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    return Image.fromarray(pixels(height, width, 3, seed)).convert(mode)


def jpeg(height: int, width: int, mode: str = "RGB", seed: int = 0, **options: object) -> bytes:
    return encode(picture(height, width, mode, seed), "JPEG", **{"quality": 90, **options})


def png(height: int, width: int, mode: str = "RGB", seed: int = 0, **options: object) -> bytes:
    return encode(picture(height, width, mode, seed), "PNG", **options)


def png16(height: int, width: int, channels: int, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 65536, (height, width, channels), dtype=np.uint16)
    return cv2.imencode(".png", values[:, :, 0] if channels == 1 else values)[1].tobytes()


def rgba_png(height: int, width: int, seed: int = 0) -> bytes:
    return encode(Image.fromarray(pixels(height, width, 4, seed)), "PNG")


def oriented(height: int, width: int, orientation: int, form: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(picture(height, width), form, exif=exif)


def exif(orientation: int, order: str = "<", kind: str = "H", entries: int = 1) -> bytes:
    """EXIF without its name, with the orientation in the last entry.

    Args:
        order: "<" or ">".
        kind: The struct format of the value's type.
        entries: How many the directory announces and has.
    """
    types = {"B": 1, "H": 3, "L": 4, "b": 6, "h": 8, "l": 9}
    value = struct.pack(order + kind, orientation).ljust(4, b"\0")
    other = struct.pack(order + "HHII", 0x10F, 4, 1, 0) * (entries - 1)
    last = struct.pack(order + "HHI", 0x112, types[kind], 1) + value
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, entries)
    return start + other + last + bytes(4)


def segment(marker: int, body: bytes) -> bytes:
    """A segment of a JPEG."""
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body


def before_frame(data: bytes, inserted: bytes) -> bytes:
    """A JPEG with bytes in front of its first quantisation table."""
    at = data.index(b"\xff\xdb")
    return data[:at] + inserted + data[at:]


def before_scan(data: bytes, inserted: bytes) -> bytes:
    """A JPEG with bytes between its frame and its first scan."""
    at = data.index(b"\xff\xda")
    return data[:at] + inserted + data[at:]


def riff_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def webp_with_exif(data: bytes, width: int, height: int, exif: bytes) -> bytes:
    """A WebP of one chunk, extended by EXIF."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + riff_chunk(b"VP8X", b"\x08\0\0\0" + sides) + data[12:]
    body += riff_chunk(b"EXIF", exif)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_exif(height: int, width: int, form: str, exif: bytes) -> bytes:
    """A JPEG, PNG or WebP with EXIF, given without its name."""
    if form == "JPEG":
        return before_frame(jpeg(height, width), segment(0xE1, b"Exif\0\0" + exif))
    if form == "PNG":
        data = png(height, width)
        return data[:33] + chunk(b"eXIf", exif) + data[33:]
    still = encode(picture(height, width), "WEBP", lossless=True)
    return webp_with_exif(still, width, height, exif)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_claiming(width: int, height: int, depth: int = 8, color: int = 2) -> bytes:
    """A PNG whose header claims any size and whose data is one compressed zero row or so."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def jpeg_claiming(width: int, height: int) -> bytes:
    """A small JPEG whose frame header was patched to claim any size."""
    data = bytearray(jpeg(16, 16))
    frame = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def png_announcing(kind: bytes, length: int, behind: bytes = b"") -> bytes:
    """A PNG of 8x8 one of whose chunks announces more bytes than the file has."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    if kind != b"IDAT":
        start += chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    return start + struct.pack(">I", length) + kind + behind


def damaged_png(height: int, width: int) -> bytes:
    """A PNG whose chunks are whole and whose compressed pixels are not."""
    data = bytearray(png(height, width))
    at = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[at - 8 : at - 4])
    data[at + 8 : at + 12] = bytes(0xFF ^ one for one in data[at + 8 : at + 12])
    data[at + length : at + length + 4] = struct.pack(">I", zlib.crc32(data[at - 4 : at + length]))
    return bytes(data)


def jpeg_of_scans(count: int, height: int = 16, width: int = 16) -> bytes:
    """A progressive JPEG of so many scans: the last scan is repeated."""
    data = jpeg(height, width, progressive=True)
    passes = data.count(b"\xff\xda")
    last = data[data.rindex(b"\xff\xda") : -2]
    assert data.endswith(b"\xff\xd9")
    return data[:-2] + last * (count - passes) + b"\xff\xd9"
