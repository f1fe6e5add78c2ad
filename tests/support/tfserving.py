"""A client of TensorFlow Serving's gRPC services, made of ksrv's messages."""

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from ksrv.dialects.tfserving.predict_message import NUMBERS
from ksrv.model.datatypes import DTYPES
from ksrv.protocol.protobuf import message_class, methods

PACKAGE = "tensorflow.serving"
PREDICTION, MODEL = f"{PACKAGE}.PredictionService", f"{PACKAGE}.ModelService"


def tensor_proto(datatype: str, shape: Any, **values: Any) -> Any:
    """Return a TensorProto with a field of values."""
    made = message_class("tensorflow.TensorProto")(dtype=NUMBERS.get(datatype, datatype), **values)
    made.tensor_shape.SetInParent()
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def content(array: np.ndarray, datatype: str) -> Any:
    """Return an array as a TensorProto with tensor_content."""
    return tensor_proto(datatype, array.shape, tensor_content=array.tobytes())


def values_of(tensor: Any) -> Any:
    """Return the values of an answer's TensorProto, as TensorFlow's make_ndarray does."""
    name = {number: name for name, number in NUMBERS.items()}[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if name == "BYTES":
        return np.array(list(tensor.string_val), object).reshape(shape)
    assert not tensor.tensor_content
    given = [field for field, _ in tensor.ListFields() if field.name.endswith("_val")]
    values = list(getattr(tensor, given[0].name)) if given else []
    stored = np.uint16 if name in ("FP16", "BF16") else DTYPES[name]
    return np.array(values, dtype=stored).view(DTYPES[name]).reshape(shape)


def predict_request(
    name: str,
    inputs: Mapping[str, Any],
    *,
    outputs: Any = (),
    version: int | None = None,
    **spec: Any,
) -> Any:
    """Return a PredictRequest."""
    request = message_class(f"{PACKAGE}.PredictRequest")()
    request.model_spec.name = name
    for key, value in spec.items():
        setattr(request.model_spec, key, value)
    if version is not None:
        request.model_spec.version.value = version
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(value)
    request.output_filter.extend(outputs)
    return request


class Client:
    """A channel to a server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def call(self, service: str, method: str, request: Any = None, **fields: Any) -> Any:
        """Make a call with a message, bytes, or the fields of a message."""
        kind, answer = methods(service)[method]
        message = kind(**fields) if request is None else request
        sent = message if isinstance(message, bytes) else message.SerializeToString()
        return answer.FromString(
            self._channel.unary_unary(f"/{service}/{method}")(sent, timeout=60)
        )

    def predict(self, name: str, inputs: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
        """Return the outputs of a Predict call as arrays."""
        answer = self.call(PREDICTION, "Predict", predict_request(name, inputs, **spec))
        assert answer.model_spec.name == name
        assert answer.model_spec.signature_name == "serving_default"
        return {key: values_of(tensor) for key, tensor in answer.outputs.items()}


@contextmanager
def connected(server: Any) -> Any:
    """Yield a client of a `ksrv.testing.Server`."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=unlimited) as channel:
        yield Client(channel)
