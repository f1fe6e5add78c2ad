"""The limits that every front end and parser enforces, each with its default and its setting's name.

A limit is passed down from the settings; nothing here is read from the environment.
"""

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a client may send. Sizes are bytes.

    A refusal names the field below that it comes from, so that an operator can find it.
    """

    body: int = 1024 * MIB
    json: int = 64 * MIB
    in_flight: int = 0  # 0: a quarter of the machine's memory
    head: int = 16 * 1024
    json_depth: int = 64
    rank: int = 32
    dimension: int = 2**31 - 1
    inputs: int = 256
    parameters: int = 1024
    size_list: int = 65_536
    image_pixels: int = 64_000_000
    request_pixels: int = 256_000_000
    inflate_ratio: int = 100
    chunks: int = 65_536
    regions: int = 256
