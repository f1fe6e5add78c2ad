"""Sequences over REST and gRPC: their state, their order, their ends, and hostile parameters."""

import concurrent.futures
import json
import re
import urllib.request

import pytest
import tritonclient.grpc as triton_grpc

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.sequences import SHAPES, SUMS, Refused, over_grpc, over_rest, post
from tests.support.wait_until import wait_until

WAYS = {"rest": over_rest, "grpc": over_grpc}


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    own = f"{SHAPES}executor: {request.param}\nwarmup: false\n"
    batching = "batching: {max_batch_size: 8}\n"
    write_model(
        root, "sums", SUMS, f"{own}{batching}instances: 2\nsequences: {{several_rows: true}}\n"
    )
    write_model(root, "alone", SUMS, f"{own}sequences: {{}}\n")
    write_model(root, "two", SUMS, f"{own}sequences: {{max: 2}}\n")
    write_model(root, "short", SUMS, f"{own}sequences: {{idle_timeout_ms: 200}}\n")
    write_model(root, "echo", ECHO, own)
    with Server(root) as made:
        made.executor = request.param
        yield made


ECHO = """
from ksrv import BaseHandler


class Echo(BaseHandler):
    def inference(self, x):
        x = x.copy()
        x[0, 1] = len(self.context.batch.requests[0].parameters)
        return {"y": x}
"""


@pytest.fixture(params=list(WAYS))
def ask(request, server):
    """Ask a model over one of the ways, with unique ids, so that tests do not share sequences."""
    way = WAYS[request.param]

    def one(model, value, **parameters):
        return way(server, model, value, **parameters)

    one.way = request.param
    return one


def refused(ask, *args, **parameters):
    with pytest.raises(Refused) as caught:
        ask(*args, **parameters)
    return caught.value


def is_bad_request(error):
    return error.status in (400, "INVALID_ARGUMENT")


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=60) as page:
        text = page.read().decode()
    return {
        labels: float(value)
        for labels, value in re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("name", [7, 2**63 - 1, "a text"])
def test_a_sequence_keeps_its_state_from_start_to_end(ask, name):
    for model in ("sums", "alone"):
        assert ask(model, 1, sequence_id=name, sequence_start=True)[:2] == [1, 10]
        assert ask(model, 2, sequence_id=name)[:2] == [3, 0]
        assert ask(model, 3, sequence_id=name, sequence_end=True)[:2] == [6, 1]
        error = refused(ask, model, 4, sequence_id=name)
        assert is_bad_request(error)
        assert "needs the parameter 'sequence_start'" in error.message
        assert ask(model, 5, sequence_id=name, sequence_start=True, sequence_end=True)[:2] == [
            5,
            11,
        ]


def test_a_number_and_a_text_are_two_sequences(ask):
    ask("sums", 1, sequence_id=5, sequence_start=True)
    ask("sums", 10, sequence_id="5", sequence_start=True)
    assert ask("sums", 1, sequence_id=5, sequence_end=True)[0] == 2
    assert ask("sums", 1, sequence_id="5", sequence_end=True)[0] == 11


def test_a_second_start_begins_anew(ask):
    assert ask("sums", 1, sequence_id="again", sequence_start=True)[0] == 1
    assert ask("sums", 2, sequence_id="again", sequence_start=True)[0] == 2
    assert ask("sums", 2, sequence_id="again", sequence_end=True)[0] == 4


def test_requests_need_a_sequence(ask):
    for parameters in ({}, {"sequence_id": 0}, {"sequence_id": ""}, {"sequence_start": True}):
        error = refused(ask, "sums", 1, **parameters)
        assert is_bad_request(error)
        said = "needs the parameter 'sequence_id', a number above 0 or a text of 1 to 128 bytes"
        assert said in error.message


@pytest.mark.parametrize("name", [-1, 2**64, 1.5, True, None, [1], {}, "x" * 129, "x" * 1_000_000])
def test_ids_that_are_none_are_refused(server, name):
    with pytest.raises(Refused) as caught:
        over_rest(server, "sums", 1, sequence_id=name, sequence_start=True)
    assert caught.value.status == 400
    assert len(caught.value.message) <= 1024
    longest = "é" * 64
    assert over_rest(server, "sums", 1, sequence_id=longest, sequence_start=True, sequence_end=True)


@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
@pytest.mark.parametrize("flag", [1, 0, "true", 1.0, None, []])
def test_flags_that_are_none_are_refused(server, name, flag):
    with pytest.raises(Refused) as caught:
        over_rest(server, "sums", 1, sequence_id=3, **{name: flag})
    assert caught.value.status == 400


def test_models_without_sequences_get_the_parameters_as_they_are(ask):
    parameters = {"sequence_id": 9, "sequence_start": True, "sequence_end": True}
    assert ask("echo", 1, **parameters)[:2] == [1, 3]


def test_a_failed_request_leaves_the_state(ask):
    ask("sums", 1, sequence_id="fails", sequence_start=True)
    assert "refused" in refused(ask, "sums", -1, sequence_id="fails").message
    assert "secret" not in refused(ask, "sums", -2, sequence_id="fails").message
    assert ask("sums", 1, sequence_id="fails", sequence_end=True)[0] == 2


def test_no_more_sequences_than_max(server, ask):
    ask("two", 1, sequence_id="first", sequence_start=True)
    ask("two", 1, sequence_id="second", sequence_start=True)
    before = sum(metric(server, "ksrv_refused_requests_total").values())
    error = refused(ask, "two", 1, sequence_id="third", sequence_start=True)
    assert error.status in (503, "RESOURCE_EXHAUSTED")
    assert "limit 'sequences.max' (2 sequences)" in error.message
    reasons = metric(server, "ksrv_refused_requests_total")
    assert sum(reasons.values()) == before + 1
    assert any('reason="sequences_full"' in labels for labels in reasons)
    ask("two", 1, sequence_id="first", sequence_start=True)  # started again, it keeps its place
    ask("two", 1, sequence_id="first", sequence_end=True)
    ask("two", 1, sequence_id="third", sequence_start=True, sequence_end=True)
    ask("two", 1, sequence_id="second", sequence_end=True)


def test_an_idle_sequence_ends(server, ask):
    opened = lambda: metric(server, "ksrv_open_sequences")['model="short",version=""']  # noqa: E731
    ask("short", 1, sequence_id="idle", sequence_start=True)
    wait_until(lambda: opened() == 0)
    error = refused(ask, "short", 1, sequence_id="idle")
    assert error.status in (409, "ABORTED")
    assert "limit 'sequences.idle_timeout_ms' (200 milliseconds)" in error.message
    ended = metric(server, "ksrv_ended_sequences_total")
    assert ended['model="short",reason="idle_timeout",version=""'] >= 1
    assert ask("short", 4, sequence_id="idle", sequence_start=True, sequence_end=True)[0] == 4


def test_a_sequence_stays_with_its_process_and_ends_with_it(server, ask):
    if server.executor == "inline":
        pytest.skip("inline handlers have no process that could end")
    names = [f"dies {number}" for number in range(4)]

    def begun():
        pids = {name: ask("sums", 1, sequence_id=name, sequence_start=True)[2] for name in names}
        return pids if len(set(pids.values())) == 2 else None

    wait_until(begun)  # a process that the last test ended has been replaced
    first = begun()
    assert {name: ask("sums", 1, sequence_id=name)[2] for name in names} == first
    victims = [name for name in names if first[name] == first[names[0]]]
    assert "SIGKILL" in refused(ask, "sums", -3, sequence_id=victims[0]).message
    for name in victims:
        error = refused(ask, "sums", 1, sequence_id=name)
        assert error.status in (409, "ABORTED")
        assert "begin it anew" in error.message
    for name in set(names) - set(victims):
        assert ask("sums", 1, sequence_id=name)[0] == 3

    def begins():
        try:
            return ask("sums", 7, sequence_id=victims[0], sequence_start=True)[0] == 7
        except Refused:
            return False  # it was sent to the process that has just ended

    wait_until(begins)
    for name in (victims[0], *(set(names) - set(victims))):
        ask("sums", 1, sequence_id=name, sequence_end=True)


def test_many_clients_each_in_order(server, ask):
    clients, steps = 12, 15

    def client(number):
        found = []
        for step in range(steps):
            flags = {"sequence_start": step == 0, "sequence_end": step == steps - 1}
            found.append(ask("sums", step, sequence_id=f"client {number}", **flags))
        return found

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(client, range(clients)))
    for found in answers:
        assert [one[0] for one in found] == [step * (step + 1) / 2 for step in range(steps)]


def test_requests_of_one_sequence_at_the_same_time_run_one_after_the_other(ask):
    ask("sums", 0, sequence_id="together", sequence_start=True)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sums = [
            one[0] for one in pool.map(lambda _: ask("sums", 1, sequence_id="together"), range(24))
        ]
    assert sorted(sums) == list(range(1, 25))
    assert ask("sums", 0, sequence_id="together", sequence_end=True)[0] == 24


THREE_ROWS = {
    "inputs": [
        {
            "name": "x",
            "datatype": "FP32",
            "shape": [3, 4],
            "data": [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0],
        }
    ],
    "parameters": {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
}


def test_rows_of_one_request_share_the_state(server):
    answer = post(server, "/v2/models/sums/infer", THREE_ROWS)
    assert answer["outputs"][0]["data"][::4] == [1, 3, 6]


def test_several_rows_are_refused_unless_the_handler_takes_them_in_order(server):
    with pytest.raises(
        Refused, match=r"takes one row of a sequence at a time.*several_rows"
    ) as caught:
        post(server, "/v2/models/alone/infer", THREE_ROWS)
    assert caught.value.status == 400


def test_metadata_and_configuration_tell_the_bounds(server):
    def get(path):
        with urllib.request.urlopen(f"http://{server.http}{path}", timeout=60) as page:
            return json.load(page)

    assert "sequence" in get("/v2")["extensions"]
    assert get("/v2/models/two")["properties"] == {
        "sequences.max": "2",
        "sequences.idle_timeout_ms": "60000",
    }
    batching = get("/v2/models/short/config")["sequence_batching"]
    assert batching["max_sequence_idle_microseconds"] == 200_000
    assert batching["oldest"]["max_candidate_sequences"] == 1000
    with triton_grpc.InferenceServerClient(str(server.grpc)) as client:
        config = client.get_model_config("short").config
    assert config.sequence_batching.max_sequence_idle_microseconds == 200_000
    assert config.sequence_batching.oldest.max_candidate_sequences == 1000
