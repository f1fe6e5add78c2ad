"""Converts a batch to a request of MLServer, and its responses to tensors."""

import base64
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
import pydantic

from ksrv.dialects.mlserver.api import types as own_types
from ksrv.dialects.mlserver.api.codecs import as_list, encode_str
from ksrv.errors import HandlerFailed, InvalidRequest
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import TensorSpec
from ksrv.request import Element, ExecutorInputs, Parameter, RequestPart, Tensor


def declared(tensors: Iterable[Any] | None) -> tuple[TensorSpec, ...]:
    """Return inputs or outputs for the metadata of the model. Requests may have any inputs."""
    # MLServer lists an input once for each form that it takes.
    by_name = {tensor.name: tensor for tensor in tensors or ()}
    return tuple(TensorSpec(n, one.datatype, tuple(one.shape)) for n, one in by_name.items())


def request_message(
    inputs: ExecutorInputs, request: RequestPart, rows: slice | None, types: Any
) -> Any:
    """Return the request for a runtime.

    Args:
        request: The request, or the first of several requests.
        rows: The rows to take from the batch; None for whole tensors.
        types: `mlserver.types`, or ksrv's stand-in for it.

    Raises:
        InvalidRequest: A datatype or a parameter has no place in MLServer's messages.
    """
    headers, tensors = dict(request.headers), []
    is_json = "host" in headers and "inference-header-content-length" not in headers
    for name, tensor in inputs.tensors.items():
        part = tensor if rows is None else tensor.rows(rows.start, rows.stop)
        given = request.input_parameters.get(name)
        data = _data(part, is_json, given)
        if types is not own_types and isinstance(data, np.ndarray):
            data = data.reshape(-1).tolist()
        facts = {"name": name, "shape": list(part.shape), "datatype": part.datatype, "data": data}
        tensors.append(facts | {"parameters": given and dict(given)})
    outputs = [{"name": n, "parameters": request.output_parameters.get(n)} for n in request.outputs]
    facts = {"id": request.id or str(uuid.uuid4()), "inputs": tensors, "outputs": outputs or None}
    parameters = {**request.parameters, "headers": headers}
    try:
        return types.InferenceRequest(**facts, parameters=parameters)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        raise InvalidRequest(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def _data(tensor: Tensor, is_json: bool, given: Any) -> Any:
    """Return the data of an input as MLServer has it: texts if the request is JSON, which has no bytes."""
    if not isinstance(tensor.data, list):
        return tensor.data
    elements = [bytes(element) for element in tensor.data]
    if is_json and given and given.get("content_type") == "base64":  # ksrv's parser has decoded it
        return [base64.b64encode(element).decode() for element in elements]
    try:
        return [element.decode() for element in elements] if is_json else elements
    except UnicodeDecodeError:
        return elements


def response_tensors(response: Any) -> tuple[list[Tensor], dict[str, Parameter], dict[str, str]]:
    """Return the outputs, the parameters and the headers of a runtime's response.

    Raises:
        HandlerFailed: The response or an output has another form than MLServer's.
    """
    if not hasattr(response, "outputs"):
        raise HandlerFailed(f"expected an InferenceResponse, not a {type(response).__name__}")
    given = response.parameters
    headers = {name: str(value) for name, value in ((given and given.headers) or {}).items()}
    return [_tensor(output) for output in response.outputs], _parameters(given), headers


def _parameters(given: Any) -> dict[str, Parameter]:
    """Return the parameters that KServe can carry."""
    values = given.model_dump() if given is not None else {}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def _tensor(output: Any) -> Tensor:
    name, datatype, shape = output.name, output.datatype, tuple(output.shape)
    parameters, values = _parameters(output.parameters), getattr(output.data, "values", None)
    values = output.data.root if values is None else values
    if datatype == "BYTES":
        elements: list[Element] = [
            encode_str(value) if isinstance(value, str | bytes) else orjson.dumps(value)
            for value in as_list(values)
        ]
        # Runtimes give the length of a text as the shape, which no reader of tensors could use.
        shape = shape if np.prod(shape) == len(elements) else (len(elements),)
        return Tensor(name, datatype, shape, elements, parameters)
    try:
        array = np.ascontiguousarray(values, DTYPES[datatype]).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        text = f"the output {name!r} is no {datatype} of the shape {list(shape)}: {error}"
        raise HandlerFailed(text) from error
    return Tensor(name, datatype, shape, array, parameters)
