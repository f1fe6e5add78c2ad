"""Answers of the common form equal the general renderer's byte for byte; others are left to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.infer.binary_response import binary_reply
from ksrv.protocol import rest
from ksrv.request import InferRequest, InferResponse, RequestedOutput, Tensor
from ksrv.server.http.answers import server_timing
from ksrv.server.rest.fast_path import header_lines
from tests.support.examples import examples


def tensor(name="y", data=None, datatype="FP32", **more):
    data = np.arange(6, dtype=np.float32).reshape(2, 3) if data is None else data
    return Tensor(name, datatype, data.shape, data, **more)


def response(*outputs, **more):
    settings = {"model_name": "m", "model_version": "", "id": ""} | more
    return InferResponse(outputs=list(outputs) or [tensor()], **settings)


def general(answer, request):
    rendered = rest.render_infer(answer, request)
    headers = [("content-type", rendered.content_type)]
    headers.append(("inference-header-content-length", str(rendered.header_length)))
    if answer.timings:
        headers.append(("server-timing", server_timing(answer)))
    return header_lines(headers, rendered.content_length), b"".join(rendered.parts)


def assert_same(answer, request):
    fields, parts = binary_reply(answer, request)
    assert (fields, b"".join(memoryview(part).tobytes() for part in parts)) == general(
        answer, request
    )


BINARY = InferRequest("m", binary_output=True)
TIMES = {"queue": 0, "assemble": 1_499, "inference": 123_456_789, "postprocess": 500_500}


@pytest.mark.parametrize(
    "answer",
    [
        response(),
        response(model_version="3", id="request-7"),
        response(id="naïve"),
        response(tensor("\x7f")),
        response(timings=TIMES),
        response(tensor("a"), tensor("b", np.zeros((1, 0), np.float32)), tensor("c")),
        response(tensor(data=np.array([True, False]), datatype="BOOL")),
        response(tensor(data=np.array(7, np.int64), datatype="INT64")),
        response(tensor(data=np.arange(3, dtype=np.uint16), datatype="BF16")),
    ],
)
def test_common_form_equals_the_renderer(answer):
    assert_same(answer, BINARY)


def test_requested_form_of_an_output_is_respected():
    asked = InferRequest("m", outputs=[RequestedOutput("y", binary=True)])
    assert_same(response(), asked)
    assert binary_reply(response(), InferRequest("m")) is None
    mixed = InferRequest("m", outputs=[RequestedOutput("y", binary=False)], binary_output=True)
    assert binary_reply(response(), mixed) is None
    open_ = InferRequest("m", outputs=[RequestedOutput("y")], binary_output=True)
    assert_same(response(), open_)


@pytest.mark.parametrize(
    "answer",
    [
        response(model_name='qu"ote'),
        response(model_name="back\\slash"),
        response(model_name="tab\t"),
        response(headers={"X": "y"}),
        response(parameters={"a": 1}),
        response(tensor(parameters={"a": 1})),
        response(tensor(data=np.arange(6, dtype=np.float32).reshape(2, 3).T)),
        response(tensor(data=np.arange(3, dtype=">f4"))),
        response(Tensor("y", "BYTES", (1,), [b"a"])),
        response(tensor("n" * 5000)),
        InferResponse("m", "", "", []),
    ],
)
def test_other_forms_are_left_to_the_renderer(answer):
    assert binary_reply(answer, BINARY) is None


@examples(300)
@given(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    st.lists(st.integers(0, 4), max_size=4),
    st.dictionaries(st.sampled_from(["queue", "inference"]), st.integers(0, 10**13)),
)
def test_any_answer_equals_the_renderer_or_is_left_to_it(identifier, name, shape, timings):
    answer = response(tensor(name, np.zeros(shape, np.float32)), id=identifier, timings=timings)
    if binary_reply(answer, BINARY) is not None:
        assert_same(answer, BINARY)
