"""A real gRPC server over an engine, and hand-built calls to it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from ksrv._native.reactor.event_loop import EventLoop
from ksrv.dialects import registry
from ksrv.protocol.protobuf import INFERENCE, message_class, methods
from ksrv.server.addresses import parse_address
from ksrv.server.credentials import Access
from ksrv.server.grpc.grpcio_server import GrpcioServer
from ksrv.server.grpc.native_server import NativeGrpcServer
from ksrv.server.grpc.port import listen
from ksrv.server.grpc.services import OtherMethods
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import ServerParts, server_parts

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class ServerWithThreads(NativeGrpcServer):
    """A native server with separate I/O threads, which run from its start to its end."""

    def __init__(self, parts: ServerParts, others: OtherMethods | None = None) -> None:
        loop = EventLoop(4)
        super().__init__(loop, parts, others)
        self._io_threads = [threading.Thread(target=loop.run, args=(index,)) for index in range(4)]

    def start(self, address: str, **options: Any) -> int:  # type: ignore[override]
        found = parse_address(address, "grpc")
        assert found is not None
        listener = listen(found, 128)
        super().start(listener, **options)
        for thread in self._io_threads:
            thread.daemon = True
            thread.start()
        return 1 if found.path else int(listener.getsockname()[1])

    def stop(self, grace: float) -> None:
        super().stop(grace)
        self._loop.stop()
        for thread in self._io_threads:
            if thread.ident is not None:
                thread.join(1.0)


SERVERS = {"native": ServerWithThreads, "grpcio": GrpcioServer}
"""The servers by what carries them."""

tested = "native"
"""The one that `running` starts; tests/integration/grpc/conftest.py tests both."""


def new_server(
    engine: Any, settings: ServerSettings, access: Any = None, budget: Any = None
) -> Any:
    """Return a server of the tested kind that has not started."""
    access = access or Access(settings)
    memory = registry.shared_memory(settings, access)
    extensions = registry.extensions(settings)
    parts = server_parts(engine, settings, access, shared_memory=memory, extensions=extensions)
    if budget is not None:
        parts = replace(parts, budget=budget)
    return SERVERS[tested](parts, registry.grpc_methods)


@contextlib.contextmanager
def running(
    engine: Any, *, access: Any = None, budget: Any = None, tls: Any = None, **settings: Any
) -> Iterator[Any]:
    """Yield the address of a server over `engine`; `tls` is a native server's `TlsContext`."""
    server = new_server(engine, ServerSettings(**settings), access, budget)
    port = server.start("127.0.0.1:0", **({} if tls is None else {"tls": tls}))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        engine.release.set()
        server.stop(5)


def retry_seconds(error: Any) -> int:
    """Return when a refused call may be made again, by its details, which have its status too."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    [detail] = status.details
    info = error_details_pb2.RetryInfo()
    assert detail.Unpack(info)
    seconds: int = info.retry_delay.seconds
    assert trailers["retry-after"] == str(seconds)
    return seconds


def method(channel: Any, name: str, service: str = INFERENCE, kind: str = "unary_unary") -> Any:
    """Return what calls a method, of the kind that grpcio calls it."""
    request, response = methods(service)[name]
    call = getattr(channel, kind)
    return call(f"/{service}/{name}", request.SerializeToString, response.FromString)


def call(
    channel: Any,
    name: str,
    service: Any = INFERENCE,
    /,
    timeout: float = 20,
    metadata: Any = None,
    **fields: Any,
) -> Any:
    request, _ = methods(service)[name]
    return method(channel, name, service)(request(**fields), timeout=timeout, metadata=metadata)


def refused(code: str, make: Callable[[], object]) -> str:
    """Make a call that fails with a status; return the error's text."""
    with pytest.raises(grpc.RpcError) as caught:
        make()
    error: Any = caught.value
    assert error.code().name == code, error.details()
    return str(error.details())


def infer_request(
    model: str, *tensors: Any, raw: Any = (), id: str = "", parameters: Any = None
) -> Any:
    """Return a ModelInferRequest with (name, datatype, shape) tensors and raw contents."""
    made = message_class("inference.ModelInferRequest")(model_name=model, id=id)
    for name, datatype, shape in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raw)
    for key, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(made.parameters[key], kind, value)
    return made


def row_request(model: str, **fields: Any) -> Any:
    return infer_request(model, ("x", "FP32", [1, 4]), raw=[bytes(16)], **fields)


def stub_infer(channel: Any) -> Any:
    return method(channel, "ModelInfer")


def connect(address: str, **options: Any) -> Any:
    return grpc.insecure_channel(address, [*UNLIMITED, *options.items()])
