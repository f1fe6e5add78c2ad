"""The writer of ModelInferResponse against the protobuf class, field by field."""

import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv._native.protobuf import infer_response as response
from ksrv.protocol.protobuf import message_class

TEXT = st.text(max_size=200).filter(lambda text: text.encode("utf-8", "replace").decode() == text)
PARAMETERS = st.dictionaries(
    TEXT,
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        TEXT,
    ),
    max_size=3,
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 127, 128, 2**40, 2**63 - 1]), max_size=4)
DATA = st.one_of(
    st.binary(max_size=300).map(lambda raw: np.frombuffer(raw, np.uint8)),
    st.integers(0, 70_000).map(lambda size: np.arange(size, dtype=np.int32)),
    st.lists(st.one_of(st.binary(max_size=40), st.just(memoryview(b"\xff" * 70_000))), max_size=5),
)
OUTPUTS = st.lists(
    st.tuples(TEXT, st.sampled_from(["FP32", "BYTES", ""]), SHAPES, PARAMETERS, DATA), max_size=4
)


def plain(parameters, target):
    for key, value in parameters.items():
        entry = target[key]
        if isinstance(value, bool):
            entry.bool_param = value
        elif isinstance(value, float):
            entry.double_param = value
        elif isinstance(value, str):
            entry.string_param = value
        elif value >= 2**63:
            entry.uint64_param = value
        else:
            entry.int64_param = value


def contents(data):
    if isinstance(data, list):
        return b"".join(struct.pack("<I", len(one)) + bytes(one) for one in data)
    return data.tobytes()


@given(TEXT, TEXT, TEXT, PARAMETERS, OUTPUTS, st.booleans())
@example("", "", "", {}, [], False)
@example("m", "1", "", {"k": -(2**63)}, [("y", "FP32", [0], {}, np.zeros(0, "f4"))], True)
@example("m", "1", "", {}, [("t", "BYTES", [], {}, [b""])] * 130, False)
def test_message_equals_the_generated_class(name, version, identifier, own, outputs, stream):
    made = message_class("inference.ModelInferResponse")(
        model_name=name, model_version=version, id=identifier
    )
    plain(own, made.parameters)
    for title, datatype, shape, parameters, data in outputs:
        entry = made.outputs.add(name=title, datatype=datatype, shape=shape)
        plain(parameters, entry.parameters)
        made.raw_output_contents.append(contents(data))
    message = response.render(name, version, identifier, own, outputs, stream=stream)
    kind = "ModelStreamInferResponse" if stream else "ModelInferResponse"
    got = message_class(f"inference.{kind}").FromString(message)
    assert (got.infer_response if stream else got) == made
    # Nothing is left over and nothing is written twice.
    assert len(message) == (len(got.SerializeToString()))
