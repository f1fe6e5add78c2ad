"""Requests that the HTTP server queues without Python get the same answers as on the general path.

An engine, an HTTP server and sockets in one process. Each request is sent twice: to a server with endpoints, and to a
server without endpoints, where Python parses and renders every request.
"""

import contextlib
import json
import re
import socket
import struct
import time

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv._native.server.request_batch import RequestBatch
from ksrv.engine.instances.instance import Instance
from ksrv.errors import HandlerFailed
from ksrv.server.rest.fast_path import FAST_PATH_JSON
from tests.support.native.fast_path import (
    MODELS,
    ONE,
    ONE_YAML,
    UNEVEN,
    UNEVEN_YAML,
    Hold,
    ask,
    ask_both,
    entry,
    message,
    opened,
    posted,
    readable,
    row,
    serving,
    started,
    status,
    stripped,
)
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import read_message


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engine(models):
    with started(models, MODELS) as engine:
        yield engine


A, B = row(1, 2, 3, 4), row(10, 20, 30, 40)
MINE = [{"name": "y", "parameters": {"binary_data": True}}]
THIRD = b'{"id": "a\\u0062", "inputs": [%s], "parameters": {"binary_data_output": true}}'
MUCH = json.dumps({"inputs": [entry("x", A)], "parameters": {"binary_data_output": True}}).encode()
MUCH += b" " * FAST_PATH_JSON

PLAIN = {
    "one input": message("one", {"x": A}),
    "an id": message("one", {"x": A}, id="request 42"),
    "an id beyond ASCII": message("one", {"x": A}, id="größe"),
    "outputs named": message("one", {"x": A}, outputs=MINE, parameters={}),
    "several rows": message("one", {"x": row(1, 2, rows=3)}),
    "two inputs": message("pair", {"a": A, "b": B}),
    "outputs in another order": message(
        "pair", {"a": A, "b": B}, outputs=[{"name": "rows"}, {"name": "sum"}]
    ),
    "one output of two": message("pair", {"a": A, "b": B}, outputs=[{"name": "rows"}]),
    "a timeout": message(
        "one", {"x": A}, parameters={"binary_data_output": True, "timeout": 10**7}
    ),
    "a version": message("versions/versions/2", {"x": A}),
    "the highest version": message("versions", {"x": A}),
    "a model that joins": message("joined", {"x": A}),
    "a handler's process": message("separate", {"x": A}),
    "undeclared outputs": message("open", {"x": A}),
    "undeclared texts": message("open", {"x": row(-1)}),
    "a large answer": message("wide", {"x": np.arange(3 * 4096, dtype="<f4").reshape(3, 4096)}),
    "a fault": message("one", {"x": row(-1)}),
    "an error": message("one", {"x": row(-2)}),
    "a header": message("one", {"x": row(-4)}),
    "a parameter": message("one", {"x": row(-5)}),
    "a look at the request": message("one", {"x": row(-6)}, id="four", fields="X-Mine: abc\r\n"),
    "a failed row": message("one", {"x": row(-7)}),
    "a binary request for JSON": message("one", {"x": A}, parameters={}),
    "a JSON answer by name": message(
        "one", {"x": A}, outputs=[{"name": "y", "parameters": {"binary_data": False}}]
    ),
    "answers in both forms": message(
        "pair",
        {"a": A, "b": B},
        outputs=[{"name": "rows", "parameters": {"binary_data": False}}, {"name": "sum"}],
    ),
    "inputs in another order": message("pair", {"b": B, "a": A}),
    "a priority": message("one", {"x": A}, parameters={"binary_data_output": True, "priority": 1}),
    "an id with DEL": message("one", {"x": A}, id="a\x7fb"),
}

GENERAL = {
    "an unknown output": message("one", {"x": A}, outputs=[{"name": "z"}]),
    "an output's parameter": message(
        "one", {"x": A}, outputs=[{"name": "y", "parameters": {"more": 1}}]
    ),
    "classes": message(
        "one", {"x": A}, outputs=[{"name": "y", "parameters": {"classification": 2}}]
    ),
    "an unknown input": message("one", {"z": A}),
    "a wrong datatype": message("one", {"x": row(1, dtype="<f8")}),
    "a wrong shape": message("one", {"x": np.zeros((1, 5), "<f4")}),
    "a wrong rank": message("one", {"x": np.zeros(4, "<f4")}),
    "no rows": message("one", {"x": row(rows=0)}),
    "too many rows": message("joined", {"x": row(rows=9)}),
    "unequal rows": message("pair", {"a": A, "b": row(rows=2)}),
    "a parameter": message("one", {"x": A}, parameters={"binary_data_output": True, "mine": 1}),
    "an escaped id": message("one", {"x": A}, text=THIRD % json.dumps(entry("x", A)).encode()),
    "much JSON": message("one", {"x": A}, text=MUCH),
    "no JSON": message("one", {"x": A}, text=b"[" * 40),
    "an unknown model": message("none", {"x": A}),
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_fast_path_requests_are_answered_as_all_others_are(fast, general, data):
    assert ask_both(fast, general, data) == 1


@pytest.mark.parametrize("data", GENERAL.values(), ids=GENERAL)
def test_other_requests_go_the_general_way(fast, general, data):
    assert ask_both(fast, general, data) == 0


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_an_input_that_does_not_lie_aligned_leaves_the_fast_path_where_it_is_large(
    tmp_path, executor
):
    """A small tensor is copied to an aligned address."""
    large = FAST_PATH_JSON // 11
    uneven = serving(tmp_path / "uneven", UNEVEN, f"{UNEVEN_YAML}executor: {executor}\n")
    with uneven as engine, opened(engine) as (http_server, address):
        for rows, fast_ones in ((1, 1), (3, 1), (8, 1), (large - large % 8 + 1, 0)):
            text = json.dumps(
                {
                    "inputs": [
                        {"name": "a", "datatype": "UINT8", "shape": [rows, 3]},
                        {"name": "b", "datatype": "FP64", "shape": [rows, 1]},
                    ],
                    "outputs": MINE,
                }
            ).encode()
            values = b"\1" * (3 * rows) + struct.pack("<d", 0.5) * rows
            before = http_server.counters()["fast_path"]
            _, answer = ask(address, posted("uneven", text, values))
            assert answer.endswith(struct.pack("<d", 3.5) * rows)
            assert http_server.counters()["fast_path"] - before == fast_ones


@pytest.mark.parametrize("model", ["shown", "shown-joined"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_handler_gets_the_arrays_that_it_gets_of_others(fast, general, model, rows):
    arrays = {"a": np.ones((rows, 2, 1, 3), "<f4"), "b": np.ones(rows, "<i8")}
    assert ask_both(fast, general, message(model, arrays)) == 1
    _, answer = ask(fast[1], message(model, arrays))
    (length,) = struct.unpack_from("<I", answer, answer.rindex(b"}]}") + 3)
    shown = json.loads(answer[answer.rindex(b"}]}") + 7 :][:length])
    assert shown["a"] == [
        "ndarray",
        "<f4",
        [rows, 2, 1, 3],
        [24, 12, 12, 4],
        True,
        True,
        True,
        False,
    ]
    assert shown["b"] == ["ndarray", "<i8", [rows], [8], True, True, True, False]


def payload(head, body):
    length = int(re.search(rb"(?i)\r\ninference-header-content-length: (\d+)", head)[1])
    return json.loads(body[:length]), np.frombuffer(body[length:], "<f4").reshape(-1, 4)


def test_one_bad_row_of_a_joined_batch_fails_its_request_alone(fast):
    _, address = fast
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(8)]
        for number, client in enumerate(clients):
            client.sendall(message("full", {"x": row(-7 if number == 3 else -9, number)}))
        answers = [read_message(client)[:2] for client in clients]
    assert [status(head) for head, _ in answers] == [200] * 3 + [400] + [200] * 4
    assert b"is bad" in answers[3][1]
    for number in {*range(8)} - {3}:
        assert payload(*answers[number])[1].tolist() == [[-9, number, 8, 0]]


def test_a_request_is_answered_at_its_deadline_and_its_connection_lives_on(fast, general, models):
    answers = []
    for _, address in (fast, general):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(2)]
            with Hold(models / "hurried") as hold:
                hold.begin(clients[0], "hurried")
                clients[1].sendall(message("hurried", {"x": A}))
                answers.append([read_message(client)[:2] for client in clients])
                for client in clients:
                    client.sendall(message("one", {"x": A}))
                    assert payload(*read_message(client)[:2])[1].tolist() == A.tolist()
    running, waiting = answers[0]
    assert status(running[0]) == status(waiting[0]) == 504
    assert b"while the handler ran" in running[1]
    assert b"before a handler could start it" in waiting[1]
    number = re.compile(rb"[0-9]+ ms")
    for fast, slow in zip(*answers, strict=True):
        assert number.sub(b"", fast[1]) == number.sub(b"", slow[1])
        length = re.compile(rb"(?i)content-length: [0-9]+")
        assert length.sub(b"", stripped(fast[0])) == length.sub(b"", stripped(slow[0]))
        assert json.loads(fast[1])["error"]


def test_a_request_to_a_version_that_was_replaced_reaches_its_successor(tmp_path):
    one = serving(tmp_path / "one", ONE, ONE_YAML)
    with one as engine, opened(engine) as (http_server, address):
        assert status(ask(address, message("one", {"x": A}))[0]) == 200
        engine.load("one")  # the HTTP server still knows the queue of the old load
        head, body = ask(address, message("one", {"x": B}))
        assert payload(head, body)[1].tolist() == B.tolist()
        http_server.set_routes([])
        http_server.forget_endpoints()
        assert payload(*ask(address, message("one", {"x": A})))[1].tolist() == A.tolist()
        assert http_server.counters()["fast_path"] == 2


def test_a_http_server_that_goes_first_leaves_its_requests_harmless(tmp_path):
    with serving(tmp_path / "one", ONE, ONE_YAML) as engine:
        with Hold(tmp_path / "one") as hold:
            with opened(engine) as (http_server, address):
                client = socket.create_connection(address, 20)
                client.sendall(message("one", {"x": hold.x}))
                while not http_server.counters()["fast_path"]:
                    time.sleep(0.01)
            del http_server
        with client:
            assert status(read_message(client)[0]) == 200  # from the instance's thread


def test_a_batch_that_got_no_memory_for_more_rows_asks_for_it_again(tmp_path):
    leased = []

    def lease(nbytes):
        leased.append(nbytes)
        if len(leased) == 2:
            raise MemoryError
        return buffer_pool.lease(nbytes)

    with (
        serving(tmp_path / "one", ONE, ONE_YAML) as engine,
        Hold(tmp_path / "one") as hold,
        opened(engine) as (_, address),
        contextlib.ExitStack() as stack,
    ):
        (model,) = {model for _, _, model in engine.routable_models()}
        clients = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(5)]
        hold.begin(clients[0], "one")
        for number, client in enumerate(clients[1:]):
            client.sendall(message("one", {"x": row(number, rows=3)}))
            wait_until(lambda: model.queue.waiting == number + 1)  # noqa: B023 - it is called now
        handles = model.queue.take(model.queue.add_slot(), 4, 12)
        batch = RequestBatch(model, lease)
        batch.add(handles[:1])
        batch.add(handles[1:2])
        with pytest.raises(MemoryError):
            batch.add(handles[2:3])
        batch.keep(batch.handles[:2])
        batch.add(handles[3:])
        assert leased == [96, 144, 144]  # rows of 16 bytes
        assert batch.inputs().tensors["x"].data[::3, 0].tolist() == [0, 1, 3]
        model.queue.finish(handles, [HandlerFailed("no memory")] * 4)


class Panic(BaseException):
    """An exception that error handlers must not stop at."""


@pytest.fixture
def inlined(tmp_path):
    """An engine, its model, whose slot is claimed, and the address of an HTTP server."""
    with (
        serving(tmp_path / "one", ONE, ONE_YAML) as engine,
        opened(engine) as (http_server, address),
    ):
        (model,) = {model for _, _, model in engine.routable_models()}
        wait_until(lambda: model.queue.idle == 1)
        model.queue.inline_for_all = True
        yield engine, model, address
        assert http_server.counters()["stray"] == 0


def fail(*_, **__):
    raise Panic("secret")


@pytest.mark.parametrize(
    "broken",
    [("_failure_of", "_fail"), ("_failure_of",), ()],
    ids=["everything", "its errors", "the batch"],
)
def test_pushed_requests_always_end(inlined, monkeypatch, broken):
    _, model, address = inlined
    with socket.create_connection(address, 20) as client:
        monkeypatch.setattr(model.instances[0].executor, "run", fail)
        for name in broken:
            monkeypatch.setattr(Instance, name, fail)
        client.sendall(message("one", {"x": A}) * 3)
        rest = b""
        for _ in range(3):
            head, body, rest = read_message(client, rest)
            assert status(head) == 500
            assert b"secret" not in body
        monkeypatch.undo()
        assert (model.queue.open, PROCESS.held) == (0, 0)
        client.sendall(message("one", {"x": B}))
        assert payload(*read_message(client)[:2])[1].tolist() == B.tolist()
    wait_until(lambda: model.queue.idle == 1)


@pytest.mark.parametrize("is_inline", [True, False])
def test_failure_after_an_answer_answers_nothing_twice(inlined, monkeypatch, is_inline):
    _, model, address = inlined
    model.queue.inline_for_all = is_inline
    instance = model.instances[0]
    with socket.create_connection(address, 20) as client:
        for x in (A, row(-8, 1)):  # the second is answered from the memory of its input
            monkeypatch.setattr(instance, "_note_pace", fail)
            for _ in range(2):
                client.sendall(message("one", {"x": x}))
                assert payload(*read_message(client)[:2])[1].tolist() == x.tolist()
                wait_until(lambda: (model.queue.open, PROCESS.held) == (0, 0))
            monkeypatch.undo()
        client.sendall(message("one", {"x": B}))
        assert payload(*read_message(client)[:2])[1].tolist() == B.tolist()
        assert readable([client], 0) == []


def test_huge_timeout_means_no_deadline(tmp_path):
    with serving(tmp_path / "one", ONE, ONE_YAML) as engine:
        (model,) = {model for _, _, model in engine.routable_models()}
        model.timeout_ns = 0
        with opened(engine) as (_, address):
            for timeout in (18446744073709552, 2**64 - 1, 10**15 + 1):
                wanted = {"binary_data_output": True, "timeout": timeout}
                head, _ = ask(address, message("one", {"x": A}, parameters=wanted))
                assert status(head) == 200
        assert model.queue.counts()["expired_queued"] == 0
