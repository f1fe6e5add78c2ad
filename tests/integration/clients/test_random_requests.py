"""Random requests, written by an encoder of plain Python, come back exactly from a real server.

Each request is sent over REST, in a dialect chosen for each input, and over gRPC with raw and, where
the datatypes have them, typed contents.
"""

import gzip
import http.client
import json
import math
import struct
import zlib

import grpc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ksrv.testing import Server
from tests.support.examples import examples
from tests.support.models import write_model
from tests.support.wire import v2_wire as wire

ECHO = """
from ksrv import BaseHandler


class Echo(BaseHandler):
    def preprocess(self, batch):
        return {"given": {name: batch[name] for name in batch}}

    def inference(self, given):
        return {name: value for name, value in given.items()}
"""
DECLARED = """
from ksrv import BaseHandler


class Echo(BaseHandler):
    def inference(self, x):
        return {"x": x}
"""


def integers(datatype):
    bits = 8 * struct.calcsize("<" + wire.FORMATS[datatype])
    low, high = (
        (0, 2**bits - 1) if datatype[0] in "UFB" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0]))


def values_of(datatype, *, text):
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(max_size=12).map(str.encode) if text else st.binary(max_size=40)
    if datatype in ("FP32", "FP64"):
        return st.floats(width=32 if datatype == "FP32" else 64)
    return integers(datatype)


@st.composite
def tensors(draw, rows):
    datatype = draw(st.sampled_from([*wire.FORMATS, "BYTES"]))
    forms = [
        form
        for form in wire.FORMS
        if datatype not in wire.BINARY_ONLY or form not in ("flat", "nested")
    ]
    if datatype == "BYTES":
        forms.remove("unsized")
    form = draw(st.sampled_from(forms))
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
    name = draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8))
    count = math.prod(shape)
    if form == "listed" and datatype == "BYTES" and count == 0:
        form = "sized"
    values = values_of(datatype, text=form in ("flat", "nested"))
    drawn = draw(st.lists(values, min_size=count, max_size=count))
    return wire.Plain(name, datatype, shape, drawn), form


@st.composite
def requests(draw):
    rows = draw(st.integers(0, 3))
    drawn = draw(
        st.lists(tensors(rows), min_size=1, max_size=4, unique_by=lambda pair: pair[0].name)
    )
    return drawn, {
        "encoding": draw(st.sampled_from([None, "gzip", "deflate"])),
        "chunked": draw(st.booleans()),
        "binary": draw(st.sampled_from(["all", "each", "none"])),
        "id": draw(st.text(max_size=5)),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("random")
    write_model(root, "any", ECHO, "")
    for datatype in [*wire.FORMATS, "BYTES"]:
        tensor = f"[{{name: x, datatype: {datatype}, shape: [-1, -1]}}]\n"
        write_model(root, f"echo_{datatype}", DECLARED, f"inputs: {tensor}outputs: {tensor}")
    with Server(root) as running:
        yield running


@pytest.fixture(scope="module")
def connection(server):
    host, port = server.http.rsplit(":", 1)
    made = http.client.HTTPConnection(host, int(port), timeout=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def infer(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")


def ask(connection, model, drawn, how):
    entries, blocks = zip(*(wire.rest_input(tensor, form) for tensor, form in drawn), strict=True)
    fields = {"id": how["id"]} if how["id"] else {}
    if how["binary"] == "all":
        fields["parameters"] = {"binary_data_output": True}
    else:
        fields["outputs"] = [
            {
                "name": tensor.name,
                "parameters": {
                    "binary_data": how["binary"] == "each" or not speakable(tensor),
                },
            }
            for tensor, _ in drawn
        ]
    text = wire.document(list(entries), **fields)
    body = text + b"".join(blocks)
    headers = {}
    if len(body) > len(text) or how["chunked"]:
        headers["Inference-Header-Content-Length"] = str(len(text))
    if how["encoding"]:
        headers["Content-Encoding"] = how["encoding"]
        body = (gzip.compress if how["encoding"] == "gzip" else zlib.compress)(body)
    if how["chunked"]:
        body = iter([body[:7], body[7:]] if len(body) > 7 else [body])
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    length = int(response.headers.get("Inference-Header-Content-Length", len(answer)))
    head = json.loads(answer[:length])
    assert head.get("id", "") == how["id"]
    return wire.rest_outputs(head, answer[length:])


def speakable(tensor):
    """Whether JSON can carry a tensor in an answer."""
    if tensor.datatype != "BYTES":
        return tensor.datatype not in wire.BINARY_ONLY
    try:
        return all(value.decode() is not None for value in tensor.values)
    except UnicodeDecodeError:
        return False


def check(found, drawn, *, bits=()):
    assert set(found) == {tensor.name for tensor, _ in drawn}
    for tensor, _ in drawn:
        datatype, shape, values = found[tensor.name]
        assert tuple(shape) == tensor.shape
        # A handler sees BF16 as its bit patterns, and answers those.
        assert datatype == ("UINT16" if tensor.datatype == "BF16" and bits else tensor.datatype)
        assert len(values) == len(tensor.values)
        for got, sent in zip(values, tensor.values, strict=True):
            if isinstance(sent, float):
                if got is None:
                    assert not math.isfinite(sent)
                else:
                    letter = wire.FORMATS[tensor.datatype]
                    assert struct.pack(letter, got) == struct.pack(letter, sent) or (
                        math.isnan(got) and math.isnan(sent)
                    )
            else:
                assert got == sent
                assert type(got) is type(sent)


@examples(
    400, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(request=requests())
def test_mixes_of_tensors_come_back(connection, infer, request):
    drawn, how = request
    check(ask(connection, "any", drawn, how), drawn, bits=("BF16",))
    given = [tensor for tensor, _ in drawn]
    raw = infer(wire.grpc_request("any", given, typed=False))
    check(wire.grpc_outputs(raw), drawn, bits=("BF16",))
    if all(tensor.datatype in wire.CONTENTS for tensor in given):
        typed = infer(wire.grpc_request("any", given, typed=True))
        check(wire.grpc_outputs(typed), drawn)


@examples(300, derandomize=True)
@given(data=st.data())
def test_declared_tensors_come_back(connection, infer, data):
    """The same with a declared model for each datatype, where a batch may also be empty."""
    rows = data.draw(st.integers(0, 3))
    drawn, form = data.draw(tensors(rows))
    width = math.prod(drawn.shape[1:])
    tensor = wire.Plain("x", drawn.datatype, (rows, width), drawn.values)
    how = {
        "encoding": None,
        "chunked": False,
        "binary": data.draw(st.sampled_from(["all", "none"])),
    }
    pair = [(tensor, form)]
    check(ask(connection, f"echo_{tensor.datatype}", pair, {**how, "id": "7"}), pair)
    found = infer(wire.grpc_request(f"echo_{tensor.datatype}", [tensor], typed=False, id="7"))
    check(wire.grpc_outputs(found), pair)
