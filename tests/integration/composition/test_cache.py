"""The response cache: what is answered again, what is not, and its bounds."""

import json
import re
import threading
import urllib.request

import grpc
import pytest

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.streams import TEXT, StreamedResponse, text_request
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer

COUNTS = """
import numpy as np

from ksrv import BaseHandler, InferenceError


class Counts(BaseHandler):
    calls = 0

    def inference(self, x):
        self.calls += 1
        if x[0, 0] < 0:
            raise InferenceError(f"call {self.calls} is refused", 422)
        return {"y": np.full_like(x, self.calls)}
"""

NAMES = """
from ksrv import BaseHandler


class Names(BaseHandler):
    calls = 0

    def inference(self, text):
        self.calls += 1
        return {"piece": [f"{self.calls}:{bytes(one).decode()}" for one in text]}
"""

SIGNED = """
import numpy as np

from ksrv import BaseHandler


class Signed(BaseHandler):
    calls = 0

    def inference(self, x):
        self.calls += 1
        batch = self.context.batch
        user = batch.requests[0].headers.get("x-user", "")
        batch.set_parameter(0, "calls", self.calls)
        if user:
            batch.set_header(0, "x-signed", f"for {user}")
        return {"y": np.full_like(x, self.calls)}
"""

CONSTANT = """
import numpy as np

from ksrv import BaseHandler


class Constant(BaseHandler):
    def inference(self, x):
        return {"y": np.full_like(x, self.context.parameters["value"])}
"""

CALLS = """
import time
from pathlib import Path

from ksrv import BaseHandler


class Calls(BaseHandler):
    calls = 0

    def inference(self, x):
        self.calls += 1
        found = self.context.models[self.context.parameters["model"]].infer({"x": x})
        if "called" in self.context.batch.requests[0].parameters:
            called = Path(self.context.batch.requests[0].parameters["called"])
            called.touch()
            while called.exists():
                time.sleep(0.01)
        return {"y": found["y"] + self.calls * 0.5}
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    own = f"warmup: false\nexecutor: {request.param}\n"
    write_model(root, "cached", COUNTS, VECTOR + own + "cache: {}\n")
    write_model(root, "counted", COUNTS, VECTOR + own + "cache: {}\n")
    write_model(root, "timed", COUNTS, VECTOR + own + "cache: {}\n")
    write_model(root, "plain", COUNTS, VECTOR + own)
    write_model(root, "stateful", COUNTS, VECTOR + own + "cache: {}\nsequences: {}\n")
    every = VECTOR + own + "cache: {}\nversion_policy: all\n"
    versioned = write_model(root, "versioned", COUNTS, every)
    for version in "12":
        (versioned / version).mkdir()
    write_model(root, "signed", SIGNED, VECTOR + own + "cache: {}\n")
    for name in ("leaf", "stranger"):
        write_model(root, name, CONSTANT, VECTOR + own + "cache: {}\nparameters: {value: 10}\n")
    for name, model in (("middle", "leaf"), ("top", "middle"), ("both", "leaf")):
        keys = f"cache: {{}}\ninstances: 2\nparameters: {{model: {model}}}\n"
        write_model(root, name, CALLS, VECTOR + own + keys)
    write_model(root, "names", NAMES, TEXT + f"executor: {request.param}\ncache: {{entries: 10}}\n")
    with Server(root) as made:
        made.root = root
        yield made


def fetch(server, path):
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=60) as response:
        return response.read().decode()


def ask(server, model, first, id="", **parameters):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [first, 0, 0, 0]}
    document = {"id": id, "inputs": [entry], "parameters": parameters}
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        answer = next(found.lines())
    if found.status != 200:
        return answer["error"]
    assert answer.get("id", "") == id
    return answer["outputs"][0]["data"][0]


def test_the_same_request_is_answered_again(server):
    assert [ask(server, "cached", 1, str(n)) for n in range(3)] == [1, 1, 1]
    assert ask(server, "cached", 2) == 2
    assert ask(server, "cached", 1, extra="a") == 3  # parameters count
    assert ask(server, "cached", 1, extra="a") == 3
    assert [ask(server, "plain", 1) for _ in range(2)] == [1, 2]


def test_a_hit_counts_as_a_request_with_its_time(server):
    def counted():
        page = fetch(server, "/metrics")
        found = re.findall(
            r'^ksrv_(requests_total|request_duration_seconds_count)\{model="timed"(?:,outcome="success")?,'
            r'version="[^"]*"\} (\S+)',
            page,
            re.M,
        )
        stats = json.loads(fetch(server, "/v2/models/timed/stats"))["model_stats"][0]
        return {name: float(count) for name, count in found}, stats

    before, _ = counted()
    for _ in range(10):
        assert ask(server, "timed", 7) == 1
    after, stats = counted()
    assert {name: after[name] - before.get(name, 0) for name in after} == {
        "requests_total": 10,
        "request_duration_seconds_count": 10,
    }
    assert (stats["inference_count"], stats["execution_count"]) == (1, 1)
    times = stats["inference_stats"]
    assert [times[name]["count"] for name in ("success", "cache_hit", "cache_miss")] == [10, 9, 1]
    assert all(times[name]["ns"] > 0 for name in ("success", "cache_hit", "cache_miss"))
    page = fetch(server, "/metrics")
    for result, count in (("hit", 9), ("miss", 1)):
        labels = rf'model="timed",result="{result}",version="[^"]*"'
        name = rf"ksrv_response_cache_requests_total\{{{labels}\}}"
        assert re.search(rf"^{name} {count}\.0$", page, re.M), result
    assert 'ksrv_response_cache_requests_total{model="plain"' not in page


def signed(server, protocol, user):
    """Ask for a signature; return the header and the number of the handler's call."""
    if protocol == "grpc":
        asked = infer_request("signed", ("x", "FP32", [1, 4]), raw=[bytes(16)])
        with grpc.insecure_channel(server.grpc) as channel:
            found = stub_infer(channel).with_call(asked, metadata=[("x-user", user)], timeout=60)
        answer, call = found
        return dict(call.trailing_metadata()).get("x-signed"), answer.parameters[
            "calls"
        ].int64_param
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}
    sent = urllib.request.Request(
        f"http://{server.http}/v2/models/signed/infer",
        json.dumps({"inputs": [entry]}).encode(),
        {"x-user": user},
    )
    with urllib.request.urlopen(sent, timeout=60) as response:
        document = json.loads(response.read())
        return response.headers["x-signed"], document["parameters"]["calls"]


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_headers_of_one_caller_do_not_reach_another(server, protocol):
    assert signed(server, protocol, "alice")[0] == "for alice"
    assert signed(server, protocol, "bob")[0] == "for bob"
    assert signed(server, protocol, "alice")[0] == "for alice"


def change_leaf(server, value):
    """Load the model that the others call with another value."""
    file = server.root / "leaf" / "model.yaml"
    file.write_text(re.sub(r"value: \d+", f"value: {value}", file.read_text()))
    post(server, "/v2/repository/models/leaf/load")


def post(server, path):
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{server.http}{path}", b"{}"), timeout=60
    ) as answer:
        assert answer.status == 200


def test_loading_a_called_model_again_drops_the_callers_answers(server):
    change_leaf(server, 10)
    assert [int(ask(server, name, 1)) for name in ("leaf", "middle", "top")] == [10, 10, 11]
    assert ask(server, "middle", 1) == ask(server, "middle", 1)
    change_leaf(server, 20)
    assert [int(ask(server, name, 1)) for name in ("top", "middle", "leaf")] == [21, 20, 20]
    kept = ask(server, "top", 1)
    post(server, "/v2/repository/models/stranger/load")
    assert ask(server, "top", 1) == kept  # which does not call it


def test_answer_computed_during_a_load_of_a_called_model_is_not_cached(server, tmp_path):
    change_leaf(server, 30)
    called = tmp_path / "called"
    found = []
    asking = threading.Thread(
        target=lambda: found.append(ask(server, "both", 2, called=str(called)))
    )
    asking.start()
    wait_until(called.exists)
    change_leaf(server, 40)
    called.unlink()
    asking.join(60)
    assert int(found[0]) == 30
    again = threading.Thread(
        target=lambda: found.append(ask(server, "both", 2, called=str(called)))
    )
    again.start()
    wait_until(called.exists)  # the handler runs again
    called.unlink()
    again.join(60)
    assert int(found[1]) >= 40


def test_profiles_are_not_remembered(server):
    first, second = (ask(server, "counted", 5, profile="python") for _ in "12")
    assert first != second


def test_failures_are_not_remembered(server):
    first, second = ask(server, "cached", -1), ask(server, "cached", -1)
    assert first != second
    assert "is refused" in second


def test_requests_of_a_sequence_are_not_remembered(server):
    own = {"sequence_id": 7, "sequence_start": True}
    assert ask(server, "stateful", 5, **own) == 1
    own["sequence_start"] = False
    assert [ask(server, "stateful", 5, **own) for _ in "12"] == [2, 3]


def test_versions_have_separate_answers(server):
    def counts(version):
        return ask(server, f"versioned/versions/{version}", 5)

    for first in (4, 5):
        ask(server, "versioned/versions/2", first)
    assert [counts("1"), counts("2"), counts("1"), counts("2")] == [1, 2, 1, 2]


def test_texts_with_other_boundaries_have_other_keys(server):
    def infer(*texts):
        document = text_request("")
        document["inputs"][0] |= {"shape": [len(texts)], "data": list(texts)}
        with StreamedResponse(server, "/v2/models/names/infer", document, None) as found:
            return next(found.lines())["outputs"][0]["data"]

    assert infer("ab", "c") == ["1:ab", "1:c"]
    assert infer("a", "bc") == ["2:a", "2:bc"]
    assert infer("ab", "c") == ["1:ab", "1:c"]
