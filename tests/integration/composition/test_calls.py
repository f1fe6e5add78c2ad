"""Handlers that call other models: inline and in processes, joined, in circles, with deadlines and errors."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.native.fast_path import ask as ask_raw
from tests.support.native.fast_path import message, status
from tests.support.streams import StreamedResponse
from tests.support.wait_until import wait_until

DOUBLE = """
from ksrv import BaseHandler, InferenceError


class Double(BaseHandler):
    def inference(self, x):
        if (x < 0).any():
            raise InferenceError("negative rows are refused", 422)
        if not self.context.parameters.get("writes"):
            return {"y": x * 2}
        x *= 2  # in place: fails where the memory is the caller's
        return {"y": x}
"""

TWICE = """
from ksrv import BaseHandler


class Twice(BaseHandler):
    def inference(self, x):
        called = self.context.models[self.context.parameters.get("calls", "double")]
        first = called.submit({"x": x})
        second = called.submit({"x": first.result()["y"]})
        return {"y": second.result()["y"]}
"""

LATER = """
import asyncio

from ksrv import BaseHandler


class Later(BaseHandler):
    async def inference(self, x):
        called = self.context.models[self.context.parameters.get("calls", "double")]
        one, two = await asyncio.gather(called.submit({"x": x}), called.submit({"x": x + 1}))
        return {"y": one["y"] + two["y"]}
"""

IMPATIENT = """
import asyncio

from ksrv import BaseHandler
from ksrv.errors import KsrvError


class Impatient(BaseHandler):
    async def inference(self, x):
        models = self.context.models
        slow = models["sleepy"].submit({"x": x})
        try:
            await asyncio.wait_for(slow, 0.2)
        except (TimeoutError, asyncio.TimeoutError):
            if slow.done() and not slow.cancel():
                return {"y": await self.others(models["double"], slow, x)}
        return {"y": x}

    async def others(self, double, slow, x):
        again = double.submit({"x": x})
        one, two, three = await asyncio.gather(again, again, double.submit({"x": x}))
        assert (one["y"] == two["y"]).all() and (one["y"] == again.result()["y"]).all()
        assert not again.cancel()
        try:
            slow.result()
        except KsrvError:
            return one["y"] + three["y"]
        return x
"""

CIRCLE = """
from ksrv import BaseHandler


class Circle(BaseHandler):
    def inference(self, x):
        return self.context.models[self.context.parameters["calls"]].infer({"x": x})
"""

SLEEPY = """
import time
from pathlib import Path


def inference(x):
    time.sleep(float(x[0, 0]))
    return {"y": x}
"""

TEXTS = """
from ksrv import BaseHandler


class Texts(BaseHandler):
    def inference(self, text):
        found = self.context.models["upper"].infer({"text": [bytes(one) for one in text]})
        return {"out": found["out"]}
"""

UPPER = 'def inference(text): return {"out": [bytes(one).upper() for one in text]}\n'

VALUES = """
import enum

import numpy as np

from ksrv import BaseHandler, InferenceError
from ksrv.errors import TooManyRequests


class Name(str, enum.Enum):
    X = "x"
    Y = "y"


class Whole(enum.IntEnum):
    ONE = 1


class Values(BaseHandler):
    def inference(self, x):
        try:
            return self.called(x)
        except (TypeError, ValueError) as error:
            raise InferenceError(f"{type(error).__name__}: {error}", 500)

    def called(self, x):
        double = self.context.models["double"]
        match int(x[0, 0]):
            case 1: made = {"version": 5}
            case 2: made = {"outputs": [5]}
            case 3: made = {"parameters": {"a": None}}
            case 4: made = {"parameters": {"a": [1]}}
            case 5: made = {"parameters": {"a": 2**70}}
            case 6: made = {"parameters": {5: 1}}
            case 7: return double.infer({5: x})
            case 8: raise TooManyRequests("enough of these", retry_after=7)
            case 9:
                odd = {"a": np.float64(1), "b": np.int64(2), "c": Name.X, "d": Whole.ONE, "e": np.True_}
                made = {"outputs": (Name.Y,), "parameters": odd}
        return {"y": double.infer({Name.X: x}, **made)["y"]}
"""

BYTES = """
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs: [{name: out, datatype: BYTES, shape: [-1]}]
warmup: false
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "double", DOUBLE, VECTOR + "batching: {max_batch_size: 8}\n")
    write_model(root, "writes", DOUBLE, VECTOR + "parameters: {writes: true}\nwarmup: false\n")
    write_model(root, "sleepy", SLEEPY, VECTOR)
    write_model(root, "upper", UPPER, BYTES)
    write_model(root, "limited", DOUBLE, VECTOR + "rate_limit: 0.01\nwarmup: false\n")
    for executor, behind in (("inline", ""), ("process", "-process")):
        own = f"executor: {executor}\n"
        write_model(root, "twice" + behind, TWICE, VECTOR + own)
        write_model(root, "careful" + behind, TWICE, VECTOR + own + "parameters: {calls: writes}\n")
        write_model(root, "nobody" + behind, TWICE, VECTOR + own + "parameters: {calls: none}\n")
        write_model(root, "waits" + behind, TWICE, VECTOR + own + "parameters: {calls: sleepy}\n")
        write_model(root, "later" + behind, LATER, VECTOR + own)
        limited = own + "parameters: {calls: limited}\nwarmup: false\n"
        write_model(root, "twice-limited" + behind, TWICE, VECTOR + limited)
        write_model(root, "later-limited" + behind, LATER, VECTOR + limited)
        write_model(root, "values" + behind, VALUES, VECTOR + own + "warmup: false\n")
        write_model(root, "impatient" + behind, IMPATIENT, VECTOR + own)
        write_model(root, "texts" + behind, TEXTS, BYTES + own)
        circle = {"a": "b", "b": "c", "c": "a", "self": "self"}
        for name, called in circle.items():
            calls = f"parameters: {{calls: {called + behind}}}\n"
            write_model(root, name + behind, CIRCLE, VECTOR + own + calls)
    with Server(root) as made:
        yield made


@pytest.fixture(params=["", "-process"])
def behind(request):
    return request.param


def ask(server, model, row, **parameters):
    document = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": row}],
        "parameters": parameters,
    }
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        [answer] = found.lines()
    if found.status == 200:
        return found.status, answer["outputs"][0]["data"]
    return found.status, answer["error"]


def raw(server, model, row):
    """Ask in the binary form, which the fast path and the ring of a process take."""
    host, _, port = server.http.rpartition(":")
    sent = message(model, {"x": np.array([row], np.float32)}, parameters={})
    head, body = ask_raw((host, int(port)), sent)
    return status(head), json.loads(body)["outputs"][0]["data"]


def test_a_handler_calls_another_model(server, behind):
    assert ask(server, "twice" + behind, [1, 2, 3, 4]) == (200, [4, 8, 12, 16])
    for _ in range(3):
        assert raw(server, "twice" + behind, [1, 2, 3, 4]) == (200, [4, 8, 12, 16])


def test_texts_are_passed_on(server, behind):
    document = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}]}
    path = f"/v2/models/texts{behind}/infer"
    with StreamedResponse(server, path, document, None) as found:
        assert next(found.lines())["outputs"][0]["data"] == ["A", "é"]


def test_coroutines_wait_for_several_calls(server, behind):
    assert ask(server, "later" + behind, [1, 2, 3, 4]) == (200, [6, 10, 14, 18])


def test_a_coroutine_need_not_wait_for_the_end_of_a_call(server, behind):
    for _ in range(2):
        assert ask(server, "impatient" + behind, [2, 0, 1, 3]) == (200, [8, 0, 4, 12])


def test_refusal_of_the_called_model_reaches_the_client(server, behind):
    assert ask(server, "twice" + behind, [-1, 2, 3, 4]) == (422, "negative rows are refused")
    status, error = ask(server, "nobody" + behind, [1, 2, 3, 4])
    assert (status, "none" in error) == (404, True)
    assert ask(server, "twice" + behind, [1, 2, 3, 4])[0] == 200


def values_with(server, model, way):
    """Return the status, the error and the seconds after which to try again."""
    document = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [way, 0, 0, 0]}],
        "parameters": {"timeout": 20_000_000},
    }
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        [answer] = found.lines()
    return found.status, answer.get("error"), found.response.headers["Retry-After"]


@pytest.mark.parametrize("caller", ["twice-limited", "later-limited"])
def test_rate_limit_of_the_called_model_reaches_the_client(server, caller, behind):
    """Of several calls all but the first are refused: none of the refusals is lost, so nothing waits for it."""
    for _ in range(2):
        status, error, seconds = values_with(server, caller + behind, 1)
        assert (status, "rate_limit" in error) == (429, True), error
        assert 0 < int(seconds) <= 100


def test_a_handler_may_turn_requests_away(server, behind):
    assert values_with(server, "values" + behind, 8) == (429, "enough of these", "7")


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (1, "the version is a int, not a text"),
        (2, "the name of an output is a int, not a text"),
        (3, "the parameter 'a' is a NoneType"),
        (4, "the parameter 'a' is a list"),
        (5, "the parameter 'a' is an integer of 71 bits"),
        (6, "the name of a parameter is a int, not a text"),
        (7, "the name of an input is a int, not a text"),
    ],
)
def test_call_with_an_impossible_value_raises_in_the_caller(server, behind, way, why):
    status, error, _ = values_with(server, "values" + behind, way)
    kind = "ValueError" if way == 5 else "TypeError"
    assert (status, error.startswith(f"{kind}: {why}")) == (500, True), error


def test_values_of_a_call_may_be_subclasses(server, behind):
    assert values_with(server, "values" + behind, 9) == (200, None, None)


@pytest.mark.differs_in_processes("a process writes into separate arrays")
def test_the_called_model_cannot_write_into_the_callers_arrays(server):
    status, error = ask(server, "careful", [1, 2, 3, 4])
    assert (status, "writes" in error) == (500, True)


def test_circles_are_refused(server, behind):
    status, error = ask(server, "a" + behind, [1, 2, 3, 4])
    assert status == 500
    assert " -> ".join(name + behind for name in "abca") in error
    status, error = ask(server, "self" + behind, [1, 2, 3, 4])
    assert (status, "circle" in error) == (500, True)


def test_the_deadline_is_inherited(server, behind):
    began = time.monotonic()
    status, error = ask(server, "waits" + behind, [2, 0, 0, 0], timeout=300_000)
    assert (status, "deadline" in error) == (504, True)
    assert time.monotonic() - began < 30
    wait_until(lambda: ask(server, "waits" + behind, [0, 0, 0, 0])[0] == 200)


def test_calls_of_many_callers_are_joined(server, behind):
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: ask(server, "twice" + behind, [n] * 4), range(16)))
    assert [row[0] for _, row in found] == [4 * n for n in range(16)]
