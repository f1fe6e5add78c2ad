"""The protobuf messages of the gRPC services, made from a private descriptor pool.

A client library in the same process registers other `inference.*` messages in protobuf's default
pool, and a second registration there is an error. So the classes here come from a private pool that
is filled, on first use, from `descriptors.binpb`; `protos/generate.py` writes that file. Importing
this module does not import protobuf.
"""

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")

_pool_lock = threading.RLock()


@functools.cache
def files() -> Mapping[str, "FileDescriptorProto"]:
    """Return the descriptors of the .proto files by name; each file is after the files that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    loaded = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    return MappingProxyType({file.name: file for file in loaded.file})


def check_backend() -> None:
    """Check protobuf's backend. This does not import the modules that make message classes.

    Raises:
        RuntimeError: protobuf runs on another backend than upb. The others parse client bytes with
            unbounded recursion or many times slower.
    """
    from google.protobuf.internal import api_implementation

    backend = api_implementation.Type()
    if backend != "upb":
        raise RuntimeError(
            f"protobuf runs on its {backend!r} backend, and ksrv needs 'upb'; "
            "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
        )


def pool() -> "DescriptorPool":
    """Return ksrv's descriptor pool.

    The lock ensures that only one pool is made, because messages of two pools cannot be combined. It also protects the
    pool: two threads that look up a message which the pool has not built yet crash the process.

    Raises:
        RuntimeError: See `check_backend`.
    """
    with _pool_lock:
        return _make_pool()


@functools.cache
def _make_pool() -> "DescriptorPool":
    check_backend()
    from google.protobuf.descriptor_pool import DescriptorPool

    made = DescriptorPool()
    for file in files().values():
        made.Add(file)
    return made


@functools.cache
def message_class(name: str) -> type[Any]:
    """Return the class of a message.

    Args:
        name: The full name, such as "inference.ModelInferRequest".

    Raises:
        KeyError: The message is unknown.
    """
    from google.protobuf.message_factory import GetMessageClass

    with _pool_lock:
        return GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def methods(service: str) -> Mapping[str, tuple[type[Any], type[Any]]]:
    """Return the request and the response class of every call of a service, by the call's name.

    Args:
        service: The full name, such as "inference.GRPCInferenceService".

    Raises:
        KeyError: The service is unknown.
    """
    with _pool_lock:
        return MappingProxyType(
            {
                method.name: (
                    message_class(method.input_type.full_name),
                    message_class(method.output_type.full_name),
                )
                for method in pool().FindServiceByName(service).methods
            }
        )


def set_parameters(field: Any, parameters: Mapping[str, Any]) -> None:
    """Set entries of a field that maps names to InferParameter messages.

    Raises:
        ValueError: A parameter is neither a text, a number nor a truth value, or it does not fit 64 bits.
    """
    for name, value in parameters.items():
        parameter = field[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int) and value < 1 << 63:
            parameter.int64_param = value
        elif isinstance(value, int):
            parameter.uint64_param = value
        elif isinstance(value, str):
            parameter.string_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            raise ValueError(
                f"a parameter is a text, a number or a truth value, but {name!r} is {value!r}"
            )


def length_prefix(field: int, length: int) -> bytes:
    """Return the bytes in front of the contents of a length-delimited field."""
    prefix = bytearray([field << 3 | 2])
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)
