"""A small client for servers of the KServe v2 protocol: REST and gRPC, blocking and asyncio.

    from ksrv.client import Client

    with Client("http://127.0.0.1:8080") as client:
        answer = client.infer("cats", Path("cat.jpg"))
        print(answer["label"])

It needs numpy, and grpcio for `grpc://` URLs. It imports no part of the server, only the table of datatypes in the
native core.

An inference travels in these steps: `operations.py` describes the call independently of the transport, and `tensors.py`
turns values into bytes; `rest_calls.py` (with `rest.py` and `http1/`) or `grpc_calls.py` (with `protobuf.py`) sends the
call. `asynchronous.py` has all methods as coroutines, and `blocking.py` runs them without an event loop (`waiting.py`).
"""

from ksrv.client.asynchronous import AsyncClient
from ksrv.client.blocking import Client
from ksrv.client.errors import (
    AccessDenied,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    StatusError,
    StreamFailed,
    Unavailable,
)
from ksrv.client.operations import InferResult

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InferResult",
    "InvalidRequest",
    "NotFound",
    "StatusError",
    "StreamFailed",
    "Unavailable",
]
