"""The limits that every front end and parser enforces, each with its default and its setting's name.

A limit is passed down from the settings; nothing here is read from the environment.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1024 * 1024

HANDLER_HEADERS = 8 * 1024
"""The most bytes of headers that a handler may set for one answer. Common proxies and gRPC clients accept as many."""

HEADER_OVERHEAD = 32
"""Bytes that are counted for each header in addition to its name and value (RFC 7541 4.1)."""

Size = Annotated[int, Meta(ge=1, le=1 << 50)]
Count = Annotated[int, Meta(ge=1, le=1 << 40)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the requests of clients. Sizes are bytes.

    The error for a request that exceeds a limit names the option, so that an operator can find it. The
    native readers support no larger values than a field allows.

    Attributes:
        body: Bytes of a request, compressed or not; also with a unit, such as 64M.
        json: Bytes of a request's JSON, or of all texts of a gRPC message.
        in_flight: Bytes of all requests and answers of a worker; 0 for a quarter of the memory.
        head: Bytes of a request's head or gRPC metadata.
        json_depth: Levels of nesting in JSON.
        rank: Dimensions of a tensor.
        dimension: The largest dimension of a tensor.
        inputs: Inputs of a request, and outputs that it names.
        parameters: Parameters of one JSON object, or of a whole gRPC message.
        size_list: Sizes in the list form of binary_data_size.
        image_pixels: Pixels of one image, as sent and as resized for `shorter_side`.
        request_pixels: Pixels of all images of a request.
        audio_seconds: Seconds of all sounds of a request.
        audio_samples: Samples of all sounds of a request, as sent in all channels, and as they are in the rows.
        image_scans: Scans of one JPEG, plus 10 for each component.
        inflate_ratio: Size of a decompressed body, divided by its compressed size.
        chunks: Chunks of a chunked body.
        client_rate: Inference requests per second of each token; 0: no limit.
        client_concurrency: Inference requests at the same time of each token; 0: no limit.
        regions: Shared memory regions that are registered at the same time.
    """

    body: Size = 1024 * MIB
    json: Size = 64 * MIB
    in_flight: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    head: Annotated[int, Meta(ge=1, le=1 << 30)] = 16 * 1024
    json_depth: Annotated[int, Meta(ge=1, le=512)] = 64
    rank: Annotated[int, Meta(ge=1, le=32)] = 32
    dimension: Count = 2**31 - 1
    inputs: Count = 256
    parameters: Count = 1024
    size_list: Count = 65_536
    image_pixels: Count = 64_000_000
    request_pixels: Count = 256_000_000
    audio_seconds: Count = 600
    audio_samples: Count = 64_000_000
    image_scans: Count = 64
    inflate_ratio: Count = 100
    chunks: Count = 65_536
    client_rate: Annotated[float, Meta(ge=0, le=1 << 40)] = 0
    client_concurrency: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    regions: Count = 256


_UNITS = {
    "json_depth": "levels",
    "rank": "dimensions",
    "inputs": "inputs",
    "parameters": "parameters",
    "chunks": "chunks",
    "inflate_ratio": "times the compressed size",
    "image_pixels": "pixels",
    "request_pixels": "pixels",
    "audio_seconds": "seconds",
    "audio_samples": "samples",
    "image_scans": "scans",
    "regions": "regions",
    "queue_size": "requests",
    "client_rate": "requests a second",
    "client_concurrency": "requests at a time",
    "rate_limit": "requests a second",
    "max_concurrency": "requests at a time",
    "max_batch_size": "rows",
    "sequences.max": "sequences",
    "sequences.idle_timeout_ms": "milliseconds",
}


def show_limit(name: str, value: float) -> str:
    """Return a limit as errors name it: "limit --limits-body (1073741824 bytes)".

    Args:
        name: A field of `Limits`, which is shown as the option that sets it, or a key of model.yaml that bounds
            requests.
    """
    return f"{limit_name(name)} ({value} {_UNITS.get(name, 'bytes')})"


def limit_name(name: str) -> str:
    """Return a limit without its value: "limit --limits-body", "limit 'queue_size'".

    Args:
        name: As `show_limit` takes it.
    """
    option = name in Limits.__struct_fields__
    return f"limit --limits-{name.replace('_', '-')}" if option else f"limit '{name}'"
