"""Traces of more than one message: calls between models, ensembles, streams; a collector with TLS."""

import secrets

import grpc
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.integration.observe.test_traces import TRACES_ITSELF, body, new_trace, over_http, tree
from tests.support.certificates import self_signed
from tests.support.models import VECTOR, write_model
from tests.support.streams import (
    StreamedResponse,
    number_request,
    pieces,
    text_request,
    write_count,
    write_later,
)
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, method

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from tests.support.otlp_collector import collecting

CALLS = """
from ksrv import BaseHandler


class Calls(BaseHandler):
    def inference(self, x):
        call = self.context.models["far"].submit({"x": x})
        near = self.context.models["near"].infer({"x": x})["y"]
        return {"y": near + call.result()["y"]}
"""
AWAITS = """
from ksrv import BaseHandler


class Awaits(BaseHandler):
    async def inference(self, x):
        near, far = (self.context.models[name].submit({"x": x}) for name in ("near", "far"))
        return {"y": (await near)["y"] + (await far)["y"]}
"""
ENSEMBLE = """
name: "steps"
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    { model_name: "near" model_version: -1
      input_map { key: "x" value: "IN" } output_map { key: "y" value: "between" } },
    { model_name: "far" model_version: -1
      input_map { key: "x" value: "between" } output_map { key: "y" value: "OUT" } }
  ]
}
"""


def write_models(folder):
    write_model(folder, "near", TRACES_ITSELF, VECTOR)
    write_model(folder, "far", TRACES_ITSELF, VECTOR + "executor: process\n")
    write_model(folder, "calls", CALLS, VECTOR)
    write_model(folder, "calls-separate", CALLS, VECTOR + "executor: process\n")
    write_model(folder, "awaits", AWAITS, VECTOR)
    write_model(folder, "awaits-separate", AWAITS, VECTOR + "executor: process\n")
    (folder / "steps" / "1").mkdir(parents=True)
    (folder / "steps" / "config.pbtxt").write_text(ENSEMBLE)
    write_count(folder)
    write_count(folder, "count-separate", "executor: process\n")
    write_later(folder)
    return folder


@pytest.fixture(scope="module")
def collected():
    with collecting() as spans:
        yield spans


@pytest.fixture(scope="module")
def server(tmp_path_factory, collected):
    folder = write_models(tmp_path_factory.mktemp("models"))
    with Server(folder, trace="otlp", environment=collected.variables) as running:
        yield running


def parts(way, *more):
    """The spans of a request at some place of the tree, and what else is below its batch."""
    batch = {f"{way} / ksrv.batch / ksrv.{stage}" for stage in ("preprocess", "inference")}
    return {way, f"{way} / ksrv.queue", f"{way} / ksrv.batch"} | batch | set(more)


def tree_of(collected, new, leaf="infer"):
    """The tree of a trace, once its root is there and a span of that name; no way is there twice."""
    trace, span, _ = new

    def names():
        return [one.name for one in collected.of_trace(trace)]

    def root():
        return any(one.parent_span_id.hex() == span for one in collected.of_trace(trace))

    wait_until(lambda: root() and any(leaf in name for name in names()), tell=lambda: str(names()))
    found = tree(collected.of_trace(trace), bytes.fromhex(span))
    assert set(found.values()) == {1}
    return {one for one in found if not one.endswith(("ksrv.postprocess", "ksrv.assemble"))}


def below(way):
    """The spans of the two models that a batch calls; a process exports its spans a little later."""
    near, far = f"{way} / infer near", f"{way} / infer far"
    return parts(near, f"{near} / ksrv.batch / mine") | parts(far, f"{far} / ksrv.batch / mine")


@pytest.mark.parametrize("model", ["calls", "calls-separate", "awaits", "awaits-separate"])
def test_calls_stand_below_the_batch_that_makes_them(server, collected, model):
    new = new_trace()
    over_http(server, model, new[2])
    root = f"infer {model}"
    expected = parts(root) | below(f"{root} / ksrv.batch")
    if model.startswith("awaits"):  # the stages of coroutines are timed as one
        expected.remove(f"{root} / ksrv.batch / ksrv.preprocess")
    wait_until(
        lambda: tree_of(collected, new) == expected, tell=lambda: str(collected.of_trace(new[0]))
    )


def test_the_steps_of_an_ensemble_stand_below_it(server, collected):
    new = new_trace()
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    answer = requests.post(
        f"{server.url}/v2/models/steps/infer",
        json={"inputs": [entry]},
        headers={"traceparent": new[2]},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    root = "infer steps"
    expected = parts(root) - {f"{root} / ksrv.batch / ksrv.preprocess"}
    expected |= below(f"{root} / ksrv.batch")
    wait_until(
        lambda: tree_of(collected, new) == expected, tell=lambda: str(collected.of_trace(new[0]))
    )


def test_a_request_without_a_caller_is_one_trace_with_its_calls(server, collected):
    name = f"root{secrets.token_hex(4)}"
    headers = {"X-Request-ID": name}
    url = f"{server.url}/v2/models/calls/infer"
    assert requests.post(url, data=body(), headers=headers, timeout=60).status_code == 200

    def of_request():
        """The called models' requests have the id of the caller's."""
        return [
            one for one in collected.all
            if any(a.key == "ksrv.request.id" and a.value.string_value == name for a in one.attributes)
        ]  # fmt: skip

    wait_until(lambda: len(of_request()) == 3)
    assert len({one.trace_id for one in of_request()}) == 1


def over_sse(server, model, parent):
    headers = {"traceparent": parent}
    path = f"/v2/models/{model}/infer"
    request = text_request("abc") if model == "later" else number_request(3)
    with StreamedResponse(server, path, request, headers=headers) as streamed:
        assert len(pieces(one for _, one in streamed.events())) == 3


def over_grpc_stream(server, model, parent):
    sent = infer_request(model, ("n", "INT64", [1, 1]), raw=[np.int64(3).tobytes()])
    if model == "later":
        sent = infer_request(model, ("text", "BYTES", [1]), raw=[b"\x03\x00\x00\x00abc"])
    with grpc.insecure_channel(server.grpc) as channel:
        stream = method(channel, "ModelStreamInfer", kind="stream_stream")
        answers = list(stream(iter([sent]), metadata=[("traceparent", parent)], timeout=60))
    assert len(answers) == 3 and not any(answer.error_message for answer in answers)


@pytest.mark.parametrize("way", [over_sse, over_grpc_stream])
@pytest.mark.parametrize("model", ["count", "count-separate", "later"])
def test_a_stream_is_one_request(server, collected, way, model):
    new = new_trace()
    way(server, model, new[2])
    found = tree_of(collected, new)
    assert {f"infer {model}", f"infer {model} / ksrv.queue", f"infer {model} / ksrv.batch"} <= found
    assert found <= parts(f"infer {model}")


def test_a_collector_with_tls(tmp_path):
    """Settings of the collector are OpenTelemetry's own; what a call changes holds there too."""
    key, cert = self_signed(tmp_path / "tls")
    write_model(tmp_path / "models", "near", TRACES_ITSELF, VECTOR)
    with collecting(key, cert) as collected:
        assert collected.url.startswith("https:")
        with Server(tmp_path / "models", trace="otlp", environment=collected.variables) as server:
            requests.post(f"{server.url}/v2/trace/setting", json={"trace_level": "OFF"}, timeout=60)
            off, on = new_trace(), new_trace()
            over_http(server, "near", off[2])
            requests.post(f"{server.url}/v2/trace/setting", json={"trace_level": None}, timeout=60)
            over_http(server, "near", on[2])
            assert tree_of(collected, on, "mine") == parts(
                "infer near", "infer near / ksrv.batch / mine"
            )
            assert collected.of_trace(off[0]) == []
