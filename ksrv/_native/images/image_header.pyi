from typing import NamedTuple

from typing_extensions import Buffer

FORMATS: tuple[str, ...]

class ImageError(ValueError): ...

class Header(NamedTuple):
    format: str
    width: int
    height: int
    channels: int
    bit_depth: int
    orientation: int
    components: int
    scans: int
    pixel_bytes: int

def probe(data: Buffer) -> Header: ...
def decode_ns(header: Header) -> int: ...
def row_decoder_bytes(header: Header) -> int: ...

DECODED_APART_NS: int
