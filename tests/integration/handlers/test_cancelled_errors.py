"""A `CancelledError` that a handler raises is a failure like any other: a 500 and a traceback in the log."""

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.streams import StreamedResponse
from tests.support.wait_until import wait_until

RAISES = """
import asyncio
import concurrent.futures

from ksrv import BaseHandler


async def cancelled_task():
    task = asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


def cancelled_future():
    future = concurrent.futures.Future()
    future.cancel()
    return future


async def fail(kind):
    if kind == "task":
        await cancelled_task()
    if kind == "wrapped future":
        await asyncio.wrap_future(cancelled_future())
    if kind == "itself":
        asyncio.current_task().cancel()
        await asyncio.sleep(60)
    if kind == "asyncio":
        raise asyncio.CancelledError
    if kind == "future":
        cancelled_future().result()


class Coroutine(BaseHandler):
    async def inference(self, x):
        await fail(self.context.batch.requests[0].parameters["kind"])
        return {"y": x}


class Chunks(BaseHandler):
    async def inference(self, x):
        kind = self.context.batch.requests[0].parameters["kind"]
        yield {"y": x}
        await fail(kind)


class Rows(BaseHandler):
    async def inference(self, x):
        kind = self.context.batch.requests[0].parameters["kind"]
        return [self.row(row, kind) for row in x]

    async def row(self, row, kind):
        yield row
        await fail(kind)
"""
YAML = """
handler: handler.py:{}
executor: {}
inputs: [{{name: x, datatype: FP32, shape: [-1, 4]}}]
outputs: [{{name: y, datatype: FP32, shape: [-1, 4]}}]
warmup: false
"""
HANDLERS = ["Coroutine", "Chunks", "Rows"]
KINDS = ["asyncio", "future", "task", "wrapped future", "itself"]


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in HANDLERS:
        folder = write_model(root, name, RAISES, "")
        (folder / "model.yaml").write_text(YAML.format(name, request.param))
    with Server(root) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", HANDLERS)
def test_it_is_a_servers_error_with_a_traceback(server, model, kind):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    name = f"{model} {kind}"
    document = {"id": name, "inputs": [entry], "parameters": {"kind": kind}}
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        [answer] = found.lines()
    assert (found.status, "CancelledError" in answer["error"]) == (500, True), answer

    def traceback():
        """Return what the log says from the failure of this request on."""
        return server.log.partition(f"(id {name!r})")[2]

    wait_until(lambda: "CancelledError" in traceback())
    assert "handler.py" in traceback().partition("CancelledError")[0]
    document["parameters"]["kind"] = "none"
    with StreamedResponse(server, f"/v2/models/{model}/infer", document, None) as found:
        assert next(found.lines())["outputs"][0]["data"] == [1, 2, 3, 4]
