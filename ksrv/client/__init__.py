"""A small client for servers of the KServe v2 protocol: REST and gRPC, blocking and asyncio.

    from ksrv.client import Client

    with Client("http://127.0.0.1:8080") as client:
        answer = client.infer("cats", Path("cat.jpg"))
        print(answer["label"])

It needs numpy, and grpcio for `grpc://` URLs; it imports no part of the server, only the table of
datatypes in the native core.
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
