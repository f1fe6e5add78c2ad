"""Envelopes on TorchServe's routes: each request of a batch separately, and an archive's envelope."""

import json

import pytest

from ksrv.dialects.torchserve.api.envelopes import JSONEnvelope
from ksrv.dialects.torchserve.calls import ROUTES, TorchServeCall
from ksrv.handlers.runner import HandlerLoadError
from ksrv.request import ExecutorInputs, RequestPart, Tensor

HANDLER = """
import ts

def handle(data, context):
    return None if data is None else [{"saw": repr(value), "of": len(data)} for value in data]
"""
OWN = b"""
from ts.torch_handler.request_envelope.base import BaseEnvelope

class Reversed(BaseEnvelope):
    def parse_input(self, data):
        return [row["body"][::-1] for row in data]

    def format_output(self, answers):
        return [answer["saw"] for answer in answers]
"""


def batch(*bodies):
    """Requests over /predictions, each with a JSON body."""
    call = TorchServeCall(content_types={"body": "application/json"})
    return ExecutorInputs(
        {
            "body": Tensor(
                "body", "BYTES", (len(bodies),), [json.dumps(one).encode() for one in bodies]
            )
        },
        len(bodies),
        [
            RequestPart(slice(row, row + 1), f"id{row}", dialect=ROUTES, facts=call)
            for row in range(len(bodies))
        ],
    )


def answers_of(runner, *bodies):
    outcome = runner.run(batch(*bodies))
    assert not outcome.failures, outcome.failures
    return [json.loads(element) for element in outcome.tensors[0].data]


@pytest.mark.parametrize("envelope", ["json", "kserve"])
def test_the_instances_of_every_request_are_taken(ts_runner, envelope):
    """TorchServe's kserve envelope reads the first request only, and fails every batch of two."""
    runner = ts_runner(HANDLER, f"envelope: {envelope}\n")
    first, second = answers_of(runner, {"instances": [1, "a"]}, {"instances": [[2]]})
    assert first == {"predictions": [{"saw": "1", "of": 3}, {"saw": "'a'", "of": 3}]}
    assert second == {"predictions": [{"saw": "[2]", "of": 3}]}


def test_body_unwraps_every_row(ts_runner):
    runner = ts_runner(HANDLER, "envelope: body\n")
    assert [one["saw"] for one in answers_of(runner, 1, {"a": None})] == ["1", "{'a': None}"]


def test_kservev2_answers_every_request_with_its_own_id(ts_runner):
    source = """
        import ts

        def handle(data, context):
            if data is None:
                return None
            assert context.input_names == [one["name"] for one in data]
            return [one["data"] for one in data]
        """
    runner = ts_runner(source, "envelope: kservev2\n")

    def request(id, name, value):
        tensor = {"name": name, "shape": [1], "datatype": "FP32", "data": [value]}
        return {"id": id, "inputs": [tensor]}

    first, second = answers_of(runner, request("a", "x", 1), request("b", "y", 2))
    assert (first["id"], second["id"]) == ("a", "b")
    assert [one["name"] for one in (*first["outputs"], *second["outputs"])] == ["x", "y"]
    assert [one["data"] for one in (*first["outputs"], *second["outputs"])] == [[1], [2]]


@pytest.mark.parametrize("name", ["own_envelope", "own_envelope.py"])
def test_envelope_of_the_archive(ts_runner, name):
    runner = ts_runner(HANDLER, f"envelope: {name}\n", {"own_envelope.py": OWN})
    assert runner.run(batch("abc", "xyz")).tensors[0].data == [b"'cba'", b"'zyx'"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "envelope is one of body, json, kserve, kservev2 or a module of the archive"),
        ({"own_envelope.py": b""}, "must define one subclass of BaseEnvelope"),
    ],
)
def test_envelope_that_there_is_not(ts_runner, files, words):
    with pytest.raises(HandlerLoadError, match=words):
        ts_runner(HANDLER, "envelope: own_envelope\n", files)


def test_json_takes_a_row_that_is_the_document_itself():
    """TorchServe's own test of its envelope passes rows without `body`."""
    envelope = JSONEnvelope(lambda rows, context: [row.decode() for row in rows])
    [answer] = envelope.handle([{"instances": [{"b64": "YQ=="}]}], None)
    assert json.loads(answer) == {"predictions": ["a"]}


FAILS = """
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return None
    context.fail(1, PredictionException("the second is bad", 422))
    return ["fine"] * len(data)
"""


def test_row_that_a_handler_fails_fails_alone(ts_runner):
    outcome = ts_runner(FAILS).run(batch(1, 2, 3))
    assert list(outcome.failures) == [1]
    assert (outcome.failures[1].http_status, outcome.failures[1].message) == (
        422,
        "the second is bad",
    )
    assert [outcome.tensors[0].data[row] for row in (0, 2)] == [b"fine", b"fine"]


@pytest.mark.parametrize("envelope", ["json", "kserve"])
@pytest.mark.parametrize("body", [{}, [1], {"instances": 3}, {"instances": {"a": 1}}, "text"])
def test_a_body_that_an_envelope_cannot_read_fails_its_request_alone(ts_runner, envelope, body):
    runner = ts_runner(HANDLER, f"envelope: {envelope}\n")
    outcome = runner.run(batch({"instances": [1]}, body, {"instances": [2]}))
    assert {at: one.http_status for at, one in outcome.failures.items()} == {1: 503}
    first, _, last = outcome.tensors[0].data
    assert json.loads(first) == {"predictions": [{"saw": "1", "of": 2}]}
    assert json.loads(last) == {"predictions": [{"saw": "2", "of": 2}]}


def test_base64_is_decoded_behind_json_where_the_first_instance_is_an_object(ts_runner):
    text = {"b64": "YQ=="}
    runner = ts_runner(HANDLER, "envelope: json\n")
    outcome = runner.run(
        batch(*({"instances": given} for given in ([text], ["a", text], [text, "a"])))
    )
    assert list(outcome.failures) == [2]
    answers = [json.loads(element)["predictions"] for element in outcome.tensors[0].data[:2]]
    assert [[one["saw"] for one in answer] for answer in answers] == [["b'a'"], ["'a'", str(text)]]


def test_row_behind_an_envelope_fails_the_batch(ts_runner):
    """Its number says nothing about requests there."""
    outcome = ts_runner(FAILS, "envelope: json\n").run(
        batch({"instances": [1, 2]}, {"instances": []})
    )
    assert {failure.http_status for failure in outcome.failures.values()} == {422}
    assert list(outcome.failures) == [0, 1]
