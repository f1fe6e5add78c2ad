"""A real gRPC server over the stand-in engine, and hand-built calls to it."""

import contextlib

import grpc

from ksrv.limits import Limits
from ksrv.protocol.protobuf import INFERENCE, message_class, methods
from ksrv.server.grpc.server import GrpcServer
from ksrv.server.settings import ServerSettings

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@contextlib.contextmanager
def running(engine, *, access=None, budget=None, **settings):
    """Yield the address of a server over `engine`."""
    server = GrpcServer(engine, ServerSettings(**settings), access=access, budget=budget)
    port = server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        engine.release.set()
        server.stop(5)


def small_limits(**limits):
    return {"limits": Limits(**limits)}


def call(channel, name, service=INFERENCE, /, timeout=20, metadata=None, **fields):
    """Make a unary call and return its answer's message."""
    request, response = methods(service)[name]
    stub = channel.unary_unary(f"/{service}/{name}", request.SerializeToString, response.FromString)
    return stub(request(**fields), timeout=timeout, metadata=metadata)


def infer_request(model, *tensors, raw=(), id="", parameters=None):
    """Return a ModelInferRequest with (name, datatype, shape) tensors and raw contents."""
    made = message_class("inference.ModelInferRequest")(model_name=model, id=id)
    for name, datatype, shape in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raw)
    for key, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(made.parameters[key], kind, value)
    return made


def stub_infer(channel):
    request, response = methods(INFERENCE)["ModelInfer"]
    return channel.unary_unary(
        f"/{INFERENCE}/ModelInfer", request.SerializeToString, response.FromString
    )


def connect(address, **options):
    return grpc.insecure_channel(address, [*UNLIMITED, *options.items()])
