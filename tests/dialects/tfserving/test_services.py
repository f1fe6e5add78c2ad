"""Classify, Regress, metadata, states and reloads over gRPC."""

import grpc
import pytest

from ksrv.protocol.protobuf import message_class
from tests.support.tfserving import MODEL, PACKAGE, PREDICTION

INVALID, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


def feature(values):
    kind = message_class("tensorflow.Feature")
    if isinstance(values[0], bytes):
        return kind(bytes_list={"value": values})
    if isinstance(values[0], int):
        return kind(int64_list={"value": values})
    return kind(float_list={"value": values})


def example(**features):
    made = message_class("tensorflow.Example")()
    for name, values in features.items():
        made.features.feature[name].CopyFrom(feature(values))
    return made


def run(client, method, name, *examples, context=None):
    given = {"examples": examples}
    kind = "example_list" if context is None else "example_list_with_context"
    if context is not None:
        given["context"] = context
    fields = {"model_spec": {"name": name}, "input": {kind: given}}
    return client.call(PREDICTION, method, **fields)


def classes(answer):
    return [
        [(one.label, one.score) for one in row.classes] for row in answer.result.classifications
    ]


def test_classes_have_the_labels_of_the_model(client):
    answer = run(
        client, "Classify", "classes", example(x=[1.0, 1.0, 2.0]), example(x=[1.0, 0.0, 0.0])
    )
    assert classes(answer) == [
        [("ant", 0.25), ("bee", 0.25), ("cow", 0.5)],
        [("ant", 1.0), ("bee", 0.0), ("cow", 0.0)],
    ]
    assert answer.model_spec.name == "classes"
    assert answer.model_spec.version.value == 1


def test_classes_have_the_labels_of_an_output(client):
    answer = run(client, "Classify", "named", example(x=[0.5, 0.25]))
    assert classes(answer) == [[("cat", 0.5), ("dog", 0.25)]]


def test_classes_without_labels_have_numbers(client):
    answer = run(client, "Classify", "fp32", example(x=[0.5, 0.25]))
    assert classes(answer) == [[("0", 0.5), ("1", 0.25)]]


def test_regressions_have_one_value_for_each_example(client):
    answer = run(
        client, "Regress", "sum", example(a=[1.5]), example(a=[2.5]), context=example(b=[2])
    )
    assert [one.value for one in answer.result.regressions] == [3.5, 4.5]


@pytest.mark.parametrize(
    ("method", "name", "examples", "code", "text"),
    [
        ("Classify", "classes", [], INVALID, "the request has no examples"),
        ("Classify", "nobody", [example(x=[1.0])], UNKNOWN, "'nobody'"),
        ("Classify", "two", [example(a=[1, 2], b=[3, 4])], INVALID, "call predict"),
        ("Classify", "classes", [example(x=[1.0, 2.0])], INVALID, "expects [3]"),
        ("Classify", "classes", [example(z=[1.0])], INVALID, "'z'"),
        ("Classify", "classes", [example(x=[b"a", b"b", b"c"])], INVALID, "'BYTES'"),
        ("Classify", "classes", [example(x=[1.0] * 3), example(y=[1.0])], INVALID, "instance 1"),
        ("Regress", "classes", [example(x=[1.0, 2.0, 3.0])], INVALID, "call predict or classify"),
        ("Regress", "sum", [example(a=[1.0], b=[1.5])], INVALID, "fraction"),
    ],
)
def test_refused_examples(client, method, name, examples, code, text):
    with pytest.raises(grpc.RpcError) as caught:
        run(client, method, name, *examples)
    assert caught.value.code() is code
    assert text in caught.value.details()


def test_metadata_are_a_signature(client):
    answer = client.call(
        PREDICTION, "GetModelMetadata", model_spec={"name": "two"}, metadata_field=["signature_def"]
    )
    found = message_class(f"{PACKAGE}.SignatureDefMap")()
    assert answer.metadata["signature_def"].Unpack(found)
    signature = found.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert {name: one.dtype for name, one in signature.inputs.items()} == {"a": 3, "b": 3}
    assert [dim.size for dim in signature.outputs["sum"].tensor_shape.dim] == [-1, 2]
    assert answer.model_spec.version.value == 1


@pytest.mark.parametrize("fields", [[], ["signature"], ["signature_def", "other"]])
def test_unknown_metadata_are_refused(client, fields):
    with pytest.raises(grpc.RpcError, match="expected 'signature_def'"):
        client.call(
            PREDICTION, "GetModelMetadata", model_spec={"name": "two"}, metadata_field=fields
        )


def test_states(client):
    answer = client.call(MODEL, "GetModelStatus", model_spec={"name": "two"})
    (version,) = answer.model_version_status
    assert (version.version, version.state, version.status.error_code) == (1, 30, 0)
    for spec, text in ({"name": "nobody"}, "'nobody' is unknown"), ({}, "set model_spec.name"):
        with pytest.raises(grpc.RpcError, match=text):
            client.call(MODEL, "GetModelStatus", model_spec=spec)
