"""The response cache: what is answered again, what is not, and its bounds."""

import re
import time
import urllib.request

import pytest

from ksrv.repository.model_yaml import load_model_config
from ksrv.repository.yaml_document import ConfigError
from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.streams import TEXT, StreamedResponse, text_request

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


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    own = f"warmup: false\nexecutor: {request.param}\n"
    write_model(root, "cached", COUNTS, VECTOR + own + "cache: {}\n")
    write_model(root, "small", COUNTS, VECTOR + own + "cache: {entries: 2}\n")
    write_model(root, "tiny", COUNTS, VECTOR + own + "cache: {bytes: 20}\n")
    write_model(root, "short", COUNTS, VECTOR + own + "cache: {ttl_s: 0.2}\n")
    write_model(root, "counted", COUNTS, VECTOR + own + "cache: {}\n")
    write_model(root, "plain", COUNTS, VECTOR + own)
    write_model(root, "stateful", COUNTS, VECTOR + own + "cache: {}\nsequences: {}\n")
    every = VECTOR + own + "cache: {}\nversion_policy: all\n"
    versioned = write_model(root, "versioned", COUNTS, every)
    for version in "12":
        (versioned / version).mkdir()
    write_model(root, "names", NAMES, TEXT + f"executor: {request.param}\ncache: {{entries: 10}}\n")
    with Server(root) as made:
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


def test_hits_and_misses_are_on_the_page_of_metrics(server):
    def counted(model):
        found = re.findall(
            rf'^ksrv_response_cache_requests_total{{model="{model}",result="(\w+)",version="[^"]*"}} (\S+)',
            fetch(server, "/metrics"),
            re.M,
        )
        return {result: float(count) for result, count in found}

    before = counted("counted")
    for _ in range(3):
        ask(server, "counted", 77)
    after = counted("counted")
    assert after["hit"] - before["hit"] == 2
    assert after["miss"] - before["miss"] == 1
    assert counted("plain") == {}


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


def test_versions_have_their_own_answers(server):
    def counts(version):
        return ask(server, f"versioned/versions/{version}", 5)

    for first in (4, 5):
        ask(server, "versioned/versions/2", first)
    assert [counts("1"), counts("2"), counts("1"), counts("2")] == [1, 2, 1, 2]


def test_entries_bytes_and_age_are_bounded(server):
    assert [ask(server, "small", n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 4]
    assert [ask(server, "tiny", n) for n in (1, 2, 2, 1)] == [1, 2, 2, 3]
    assert [ask(server, "short", 1), ask(server, "short", 1)][0] == 1
    time.sleep(0.3)
    assert ask(server, "short", 1) > 1


def test_texts_are_told_apart_by_their_bounds(server):
    def infer(*texts):
        document = text_request("")
        document["inputs"][0] |= {"shape": [len(texts)], "data": list(texts)}
        with StreamedResponse(server, "/v2/models/names/infer", document, None) as found:
            return next(found.lines())["outputs"][0]["data"]

    assert infer("ab", "c") == ["1:ab", "1:c"]
    assert infer("a", "bc") == ["2:a", "2:bc"]
    assert infer("ab", "c") == ["1:ab", "1:c"]


@pytest.mark.parametrize("cache", ["3", "{entries: 0}", "{bytes: -1}", "{ttl_s: 0}", "{size: 3}"])
def test_wrong_settings_are_named(tmp_path, cache):
    write_model(tmp_path, "m", COUNTS, VECTOR + f"cache: {cache}\n")
    with pytest.raises(ConfigError, match="cache"):
        load_model_config(tmp_path / "m")
