"""Intermediate answers of TorchServe handlers, to all requests of a batch or to some."""

import pytest

from ksrv.dialects.torchserve.api.frames import create_predict_response, read_answers
from ksrv.dialects.torchserve.api.streaming import send_intermediate_predict_response
from ksrv.dialects.torchserve.runner.runner import _distinct
from ksrv.request import ExecutorInputs, RequestPart, Tensor


class Socket:
    def __init__(self):
        self.sent = []

    def send(self, items):
        self.sent.append(items)


class Running:
    """The parts of a context that streaming looks at."""

    def __init__(self, *ids):
        self.request_ids = dict(enumerate(ids))
        self.cl_socket = Socket()


def send(context, items, ids):
    send_intermediate_predict_response(items, ids, "going on", 200, context)
    return context.cl_socket.sent


@pytest.mark.parametrize(
    ("items", "ids", "sent"),
    [
        ("xyz", {0: "a", 1: "b", 2: "c"}, {0: "x", 1: "y", 2: "z"}),
        ("xyz", None, {0: "x", 1: "y", 2: "z"}),
        ("xy", {0: "b", 1: "c"}, {1: "x", 2: "y"}),  # a micro-batch numbers its part anew
        ("xyz", {0: "c"}, {2: "x"}),  # its last part may be shorter than the items
        ("x", {}, {}),
    ],
)
def test_items_go_to_the_requests_that_the_ids_name(items, ids, sent):
    assert send(Running("a", "b", "c"), list(items), ids) == [sent]


def test_rows_of_one_request_keep_their_order():
    context = Running("a", "a", "b")
    assert send(context, [1, 2, 3], context.request_ids) == [{0: 1, 1: 2, 2: 3}]


@pytest.mark.parametrize(
    ("items", "ids", "words"),
    [
        ([1], None, "1 intermediate answers were given for 3 requests"),
        ([1], {0: "nobody"}, "no further row of a request 'nobody'"),
        ([1, 2], {0: "a", 1: "a"}, "no further row of a request 'a'"),
    ],
)
def test_items_that_fit_no_request_are_an_error(items, ids, words):
    with pytest.raises(ValueError, match=words):
        send(Running("a", "b", "c"), items, ids)


def test_further_ranks_of_a_distributed_model_send_nothing(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert send(Running("a"), [1], None) == []


def test_ids_that_clients_chose_alike_are_told_apart():
    first, second, third = _distinct(["1", "1", ""])
    assert first == "1"
    assert len({first, second, third}) == 3


class Emitter(list):
    writer = None

    def __call__(self, outputs):
        self.append(outputs)

    def listening(self):
        return frozenset({1})


def test_chunks_of_a_micro_batch_reach_its_requests_alone(ts_runner):
    """Two requests with two and one rows; the handler answers its third row before the others."""
    runner = ts_runner(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is None:
                return None
            heard = [context.listening(), *(context.listening(row) for row in range(3))]
            part = {0: context.request_ids[2]}
            send_intermediate_predict_response(["third"], part, "", 200, context)
            return [heard] * len(data)
        """
    )
    chunks = Emitter()
    elements = [b"0", b"1", b"2"]
    inputs = ExecutorInputs(
        {"data": Tensor("data", "BYTES", (3,), elements)},
        3,
        [RequestPart(slice(0, 2), "same"), RequestPart(slice(2, 3), "same")],
        emit=chunks,
    )
    answer = runner.run(inputs)
    assert answer.tensors[0].data[0] == b"[true,false,false,true]"
    assert [(one.only, one.tensors[0].data) for one in chunks] == [
        (frozenset({1}), [b"", b"", b"third"])
    ]


class Statuses:
    """The part of a context that frames read."""

    def get_response_status(self, row):
        return 200, "fine"

    def get_response_headers(self, row):
        return {"x-a": "\u00e9", "content-type": "text/plain"}

    def get_response_content_type(self, row):
        return "text/plain"

    def set_response_header(self, row, name, value):
        assert (name, value) == ("ts_stream_next", "true")


def test_frames_are_read_as_they_are_written():
    items = ["one", b"\x00\xff", {"a": [1]}, ""]
    ids = dict(enumerate(["a", "b", "\u00e9", "d"]))
    frame = create_predict_response(items, ids, "going on", 200, Statuses(), True)
    assert read_answers(frame) == {
        "a": b"one", "b": b"\x00\xff", "\u00e9": b'{\n  "a": [\n    1\n  ]\n}', "d": b"",
    }  # fmt: skip
    assert read_answers(create_predict_response(None, {0: "a"}, "no", 503)) == {"a": b"error"}


def test_broken_frames_are_refused():
    frame = create_predict_response(["one"], {0: "a"}, "going on", 200, Statuses())
    for length in range(len(frame)):
        with pytest.raises(ValueError, match="the frame of answers breaks off"):
            read_answers(frame[:length])
    with pytest.raises(ValueError, match="breaks off"):
        read_answers(b"\x00\x00\x00\xc8\x7f\xff\xff\xff")


def test_chunks_that_nobody_wants_go_nowhere(ts_runner):
    runner = ts_runner(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is not None:
                send_intermediate_predict_response([1], context.request_ids, "", 200, context)
                return [context.listening()]
        """
    )
    tensor = Tensor("data", "BYTES", (1,), [b"0"])
    inputs = ExecutorInputs({"data": tensor}, 1, [RequestPart(slice(0, 1), "id")])
    assert runner.run(inputs).tensors[0].data == [b"true"]
