"""The context of TorchServe's handlers: headers, statuses, attributes that the handler sets."""

import pytest

from ksrv.dialects.torchserve.api.context import Context, RequestHeaders, RequestProcessor
from ksrv.request import ExecutorInputs, RequestPart, Tensor


def context(**headers):
    made = Context("m", "/models/m", {"model": {}}, 4, None, "0.12.0")
    made.request_processor = [RequestProcessor(RequestHeaders(headers))]
    made.request_ids = {0: "one"}
    return made


@pytest.mark.parametrize("name", ["X-My-Header", "x-my-header", "X-MY-HEADER"])
def test_headers_are_found_in_any_case(name):
    made = context(**{"X-My-Header": "v", "explain": "False"})
    assert made.get_request_header(0, name) == "v"
    headers = made.get_all_request_header(0)
    assert (headers[name], headers.get(name), name in headers) == ("v", "v", True)


def test_headers_that_were_not_sent():
    headers = context(explain="False").get_all_request_header(0)
    assert headers.get("x") is None
    assert headers.get("x", 3) == 3
    assert 3 not in headers
    with pytest.raises(KeyError, match="'x'"):
        headers["x"]


HANDLER = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from ts.handler_utils.utils import send_intermediate_predict_response

    pool = ThreadPoolExecutor(1)
    acts = []  # of the thread that `initialize` starts
    begun = threading.Semaphore(0)
    done = threading.Semaphore(0)

    def wait_for_work():
        while True:
            begun.acquire()
            acts.pop()()
            done.release()

    threading.Thread(target=wait_for_work, daemon=True).start()
    go = threading.Event()
    acted = threading.Event()
    errors = []

    def act(context):
        try:
            context.set_response_header(0, "x-of-thread", context.get_request_id(0))
            send_intermediate_predict_response(["chunk"], context.request_ids, "", 200, context)
        except Exception as error:
            errors.append(str(error))
        acted.set()

    def act_later(context):
        go.wait()
        act(context)

    def handle(data, context):
        if data is None:
            return None
        way = bytes(data[0]["data"] if "data" in data[0] else data[0]["body"]).decode()
        if way.startswith("late"):
            start = pool.submit if way == "late pool" else lambda *a: threading.Thread(target=a[0], args=a[1:]).start()
            start(act_later, context)
        elif way == "let it go":
            go.set()
            acted.wait()
            return [errors]
        elif way == "thread":
            thread = threading.Thread(target=act, args=(context,))
            thread.start()
            thread.join()
        elif way == "pool":
            pool.submit(act, context).result()
        elif way == "thread of initialize":
            acts.append(lambda: act(context))
            begun.release()
            done.acquire()
        return ["answer"]
"""


class Emitter(list):
    writer = None

    def __call__(self, outputs):
        self.append(outputs)

    def listening(self):
        return frozenset({0})


def run(runner, name, way):
    """Return the answer of a batch of one request, and the chunks that came before it."""
    chunks = Emitter()
    tensor = Tensor("data", "BYTES", (1,), [way.encode()])
    inputs = ExecutorInputs({"data": tensor}, 1, [RequestPart(slice(0, 1), name)], emit=chunks)
    return runner.run(inputs), chunks


@pytest.mark.parametrize("way", ["late thread", "late pool"])
def test_a_thread_that_outlives_its_batch_does_nothing_for_the_next_one(ts_runner, way):
    runner = ts_runner(HANDLER)
    run(runner, "A", way)
    answer, chunks = run(runner, "B", "let it go")
    assert b"works for none" in answer.tensors[0].data[0]
    assert not chunks
    assert not answer.headers


@pytest.mark.parametrize("way", ["thread", "pool", "thread of initialize"])
def test_a_thread_works_for_the_batch_that_started_it_or_that_runs(ts_runner, way):
    runner = ts_runner(HANDLER)
    for name in ("A", "B"):
        answer, chunks = run(runner, name, way)
        assert answer.headers == {0: {"x-of-thread": name}}
        assert [chunk.tensors[0].data for chunk in chunks] == [[b"chunk"]]
