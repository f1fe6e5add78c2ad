"""ksrv reads bodies from tritonclient's encoder, and tritonclient's decoder reads ksrv's answers."""

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol.rest import parse_infer, render_infer
from ksrv.request import InferRequest, InferResponse, Tensor

SPEC = ModelSpec("m", "1")
ARRAYS = {
    "BOOL": np.array([[True], [False]]),
    "UINT8": np.array([[0], [255]], "u1"),
    "UINT16": np.array([[0], [65535]], "u2"),
    "UINT32": np.array([[0], [2**32 - 1]], "u4"),
    "UINT64": np.array([[0], [2**64 - 1]], "u8"),
    "INT8": np.array([[-128], [127]], "i1"),
    "INT16": np.array([[-(2**15)], [2**15 - 1]], "i2"),
    "INT32": np.array([[-(2**31)], [2**31 - 1]], "i4"),
    "INT64": np.array([[-(2**63)], [2**63 - 1]], "i8"),
    "FP16": np.array([[1.5], [-2]], "f2"),
    "FP32": np.array([[0.1], [-3e38]], "f4"),
    "FP64": np.array([[0.1], [5e-324]], "f8"),
    "BYTES": np.array([[b"a"], ["é".encode()]], object),
}


def sent(inputs, **options) -> InferRequest:
    body, json_length = InferenceServerClient.generate_request_body(inputs, **options)
    header = None if json_length is None else str(json_length)
    return parse_infer(body, header, SPEC, Limits())


def tensor_input(name, datatype, binary):
    values = ARRAYS[datatype]
    made = InferInput(name, list(values.shape), datatype)
    return made.set_data_from_numpy(values, binary_data=binary)


def expected(datatype):
    values = ARRAYS[datatype]
    return values.ravel().tolist() if datatype == "BYTES" else values


@pytest.mark.parametrize(
    ("datatype", "binary"),
    # tritonclient itself refuses FP16 in JSON.
    [(name, binary) for name in ARRAYS for binary in (True, False) if binary or name != "FP16"],
)
def test_client_inputs_are_read(datatype, binary):
    request = sent([tensor_input("x", datatype, binary)], request_id="7")
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2, 1))
    np.testing.assert_array_equal(tensor.data, expected(datatype))
    assert request.id == "7" and request.binary_output and request.outputs == []


def test_every_option_of_infer_is_read():
    request = sent(
        [tensor_input("a", "FP32", True), tensor_input("b", "INT64", False)],
        outputs=[
            InferRequestedOutput("y", binary_data=False),
            InferRequestedOutput("z", binary_data=True, class_count=3),
        ],
        sequence_id=5,
        sequence_start=True,
        sequence_end=False,
        priority=2,
        timeout=1_000_000,
        parameters={"mine": 1.5, "flag": True, "text": "é", "count": 3},
    )
    assert [tensor.name for tensor in request.inputs] == ["a", "b"]
    assert [(o.name, o.binary, o.classification) for o in request.outputs] == [
        ("y", False, 0),
        ("z", True, 3),
    ]
    assert request.priority == 2 and request.deadline_ns is not None
    assert request.parameters == {
        "mine": 1.5,
        "flag": True,
        "text": "é",
        "count": 3,
        "sequence_id": 5,
        "sequence_start": True,
        "sequence_end": False,
    }


@pytest.mark.parametrize("binary", [True, False])
def test_client_reads_outputs(binary):
    names = [name for name in ARRAYS if binary or name != "FP16"]
    outputs = [
        Tensor(
            name,
            name,
            ARRAYS[name].shape,
            ARRAYS[name].ravel().tolist() if name == "BYTES" else ARRAYS[name],
        )
        for name in names
    ]
    response = InferResponse("m", "1", "7", outputs)
    body = render_infer(response, InferRequest("m", binary_output=binary))
    result = InferenceServerClient.parse_response_body(
        b"".join(body.parts), header_length=body.header_length
    )
    assert result.get_response()["id"] == "7"
    for name in names:
        found = result.as_numpy(name)
        if name == "BYTES" and not binary:
            found = np.array([[item.encode() for item in row] for row in found], object)
        np.testing.assert_array_equal(found, ARRAYS[name])


def test_nan_in_an_answer_reads_as_nan():
    values = np.array([1.5, np.nan], "f4")
    response = InferResponse("m", "", "", [Tensor("y", "FP32", (2,), values)])
    for literals in (True, False):
        body = render_infer(response, InferRequest("m"), nan_literals=literals)
        result = InferenceServerClient.parse_response_body(body.parts[0])
        np.testing.assert_array_equal(result.as_numpy("y"), values)
