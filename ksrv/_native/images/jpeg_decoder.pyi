from ksrv.request import Array, Element

VERSION: str
READS_CODES: bool
ORDERS: dict[str, int]

def decode_jpeg_into(
    file: Element, picture: Array, order: str, reduction: int = 1, *, codes_by_library: bool = False
) -> bool: ...
