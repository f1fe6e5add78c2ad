"""The native reader of plain JSON against the readers in Python: the same tensors and answers, or the same refusal."""

from math import prod

import pytest
from falcon.testing import TestClient
from hypothesis import event, given
from hypothesis import strategies as st

from ksrv.server.app import make_app
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from tests.support.examples import examples
from tests.support.native.fast_path import ask, opened, started, status

ECHO = """
from ksrv import BaseHandler

class Echo(BaseHandler):
    def inference(self, **inputs):
        return inputs
"""
ONE = """
def inference(x):
    return x
"""
TENSORS = {
    "flags": ("BOOL", (2,)),
    "count": ("INT64", ()),
    "byte": ("UINT8", (1,)),
    "reals": ("FP64", (1, 2)),
}
MODELS = {
    "single": {"x": ("FP32", (2, 2))},
    "several": TENSORS,
    # Names that mean something else in the bodies of other models.
    "reserved": {"id": ("INT64", ()), "parameters": ("FP32", (2,)), "instances": ("UINT8", (1,))},
    "padded": {"x": ("FP32", ("n",)), "mask": ("INT64", ("n",))},
}


def yaml_of(tensors):
    def lines(pad):
        return "".join(
            f"  - {{name: {name}, datatype: {datatype}, shape: [{', '.join(map(str, (-1, *row)))}]{pad if name == 'x' else ''}}}\n"
            for name, (datatype, row) in tensors.items()
        )

    pad = ", pad: {value: 0, mask: mask}" if "mask" in tensors else ""
    return f"handler: handler.py\ninputs:\n{lines(pad)}outputs:\n{lines('')}"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return functions that ask the HTTP server and the app."""
    models = {
        name: (ECHO if len(tensors) > 1 else ONE, yaml_of(tensors))
        for name, tensors in MODELS.items()
    }
    with started(tmp_path_factory.mktemp("models"), models) as engine, opened(engine) as fast:
        client = TestClient(make_app(server_parts(engine, ServerSettings())))
        http_server, address = fast

        def ask_server(path, body):
            before = http_server.counters()["fast_path"]
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            head, answer = ask(address, head.encode() + body)
            event("native" if http_server.counters()["fast_path"] > before else "Python")
            return status(head), answer

        def ask_app(path, body):
            answer = client.simulate_post(path, body=body)
            return answer.status_code, answer.content

        yield ask_server, ask_app


ODD = (
    "-0",
    "1e5",
    "1E+2",
    "-1.50",
    "1e400",
    "1e39",
    "-1",
    "256",
    "9007199254740993",
    "01",
    "1.",
    "NaN",
    "null",
    "true",
)
ODD += (
    "18446744073709551616",
    "0.1234567890123456789012345",
    "5e-324",
    '"7"',
    "[]",
    "{}",
    '{"b64": "AA=="}',
    "-Infinity",
)
NUMBERS = {
    "BOOL": st.sampled_from(["true", "false"]),
    "INT64": st.integers(-(2**63), 2**63 - 1).map(str),
    "UINT8": st.integers(0, 255).map(str),
    "FP32": st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    "FP64": st.floats(allow_nan=False, allow_infinity=False).map(repr),
}  # fmt: skip
BLANK = st.sampled_from(["", "", "", " ", "\n\t"])


@st.composite
def values(draw, datatype, shape, fault):
    """The text of a value; with the fault "value", seldom with another shape or an odd number."""
    if fault == "value" and draw(st.integers(0, 15)) == 0:
        return draw(st.sampled_from(ODD))
    if not shape:
        return draw(BLANK) + draw(NUMBERS[datatype]) + draw(BLANK)
    other = fault == "value" and draw(st.integers(0, 15)) == 0
    size = draw(st.integers(0, 3)) if other else shape[0]
    inner = [draw(values(datatype, shape[1:], fault)) for _ in range(size)]
    return "[" + ",".join(inner) + "]"


def shapes_of(row, rows, fault):
    """The shapes in which a row may be written, or an input of `rows` rows; 0: in an object of a row."""
    right = [(rows, *row)] if rows else [row]
    if rows == 0 and prod(row) == 1:
        right += [(), (1,)][: max(len(row), 1)]
    wrong = [(prod(row),), (*row, 1), (2, *row), (1, *row), row[1:]]
    return st.sampled_from(right + wrong * (fault == "shape"))


@st.composite
def objects(draw, tensors, rows, fault):
    names = [name for name in tensors if fault != "names" or draw(st.integers(0, 7))]
    if fault == "names" and draw(st.integers(0, 2)) == 0:
        names.append(draw(st.sampled_from([*tensors, "more", "id", "b64"])))
    length = draw(st.integers(1, 3))  # of padded rows

    def shape_of(row):
        if row == ("n",):
            row = (draw(st.integers(1, 3)) if fault == "shape" else length,)
        return draw(shapes_of(row, rows, fault))

    fields = [
        f'"{name}":{draw(values(datatype, shape_of(row), fault))}'
        for name in draw(st.permutations(names))
        for datatype, row in [tensors.get(name, ("INT64", ()))]
    ]
    return "{" + draw(BLANK) + ",".join(fields) + "}"


@st.composite
def requests(draw):
    """A path and a body. Half of the bodies are valid; the others have one kind of fault."""
    fault = draw(st.sampled_from(["", "", "", "value", "shape", "names", "last row"]))
    model, tensors = draw(st.sampled_from(list(MODELS.items())))
    rows = draw(st.integers(0, 3))
    if draw(st.booleans()):
        return f"/v2/models/{model}/generate", draw(objects(tensors, rows, fault))
    if model == "single" and draw(st.integers(0, 3)):
        datatype, row = tensors["x"]
        shape = draw(
            shapes_of(row, 0, fault) if fault == "shape" else st.sampled_from([row, (prod(row),)])
        )
        instances = [draw(values(datatype, shape, fault)) for _ in range(rows or 1)]
    else:
        instances = [draw(objects(tensors, 0, fault)) for _ in range(rows or 1)]
        if fault == "last row":  # it lacks an input of the rows before
            instances.append(draw(objects(dict(list(tensors.items())[1:]), 0, "")))
    more = ["", '"signature_name": "s",', *['"instances": [1],', '"n": 1,'] * (fault == "names")]
    text = f'{{{draw(st.sampled_from(more))}"instances": [{",".join(instances)}]}}'
    return f"/v1/models/{model}:predict", text


@examples(1600)
@given(requests(), st.data())
def test_native_and_python_readers_agree(both, request_, data):
    path, text = request_
    body = text.encode()
    if data.draw(st.integers(0, 15)) == 0:  # a byte is lost
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + body[at + 1 :]
    ask_server, ask_app = both
    assert ask_server(path, body) == ask_app(path, body)
