"""Traces: one request is one tree, over HTTP and gRPC, with a handler in the worker or in a separate process."""

import collections
import random
import re
import secrets
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import requests

from ksrv.observe import tracing
from ksrv.testing import Server
from tests.support.models import SLOW, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer
from tests.support.wire.http_reader import double_body, infer_message, open_connection, read_all

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.support.otlp_collector import collecting

TRACES_ITSELF = """
from opentelemetry import trace


def inference(x):
    trace.get_current_span().set_attribute("mine", 7)
    with trace.get_tracer("mine").start_as_current_span("mine"):
        if x[0, 0] < 0:
            raise ValueError("negative")
        return {"y": x}
"""
BATCHED = VECTOR + "parameters: {seconds: 0.3}\nbatching: {max_batch_size: 8, max_delay_ms: 200}\n"
STAGES = {"ksrv.preprocess", "ksrv.inference", "ksrv.postprocess"}


@pytest.fixture(scope="module")
def collected():
    with collecting() as spans:
        yield spans


@pytest.fixture(scope="module")
def server(tmp_path_factory, collected):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "inline", TRACES_ITSELF, VECTOR)
    write_model(folder, "process", TRACES_ITSELF, VECTOR + "executor: process\n")
    write_model(folder, "batched", SLOW, BATCHED)
    with Server(folder, trace="otlp", environment=collected.variables) as running:
        yield running


def new_trace():
    """An id of a trace, and the `traceparent` of its caller's span."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, f"00-{trace}-{span}-01"


def body(first=1.0):
    return double_body((first, 2, 3, 4))


def over_http(server, model, parent, first=1.0, **headers):
    url = f"{server.url}/v2/models/{model}/infer"
    answer = requests.post(
        url, data=body(first), headers={"traceparent": parent} | headers, timeout=60
    )
    assert answer.status_code == (200 if first > 0 else 500)


def over_grpc(server, model, parent):
    request = infer_request(model, ("x", "FP32", [1, 4]), raw=[bytes(16)])
    with grpc.insecure_channel(server.grpc) as channel:
        stub_infer(channel)(request, timeout=60, metadata=[("traceparent", parent)])


WAYS = {
    "HTTP": over_http,
    "HTTP in Python": lambda *given: over_http(*given, TE="trailers"),
    "gRPC": over_grpc,
}


def tree(spans, caller):
    """The names of the spans by their way from the caller's span; every span has one way."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    ways = collections.Counter()
    for span in spans:
        way, at = [], span
        while at.parent_span_id != caller:
            way.insert(0, at.name)
            at = by_id[at.parent_span_id]  # its parent was exported too
        ways[" / ".join([at.name, *way])] += 1
    return ways


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["inline", "process"])
def test_one_request_is_one_tree(server, collected, way, model):
    trace, span, parent = new_trace()
    WAYS[way](server, model, parent)
    wait_until(lambda: any(one.name == "mine" for one in collected.of_trace(trace)))
    wait_until(lambda: any(one.name == f"infer {model}" for one in collected.of_trace(trace)))
    found = tree(collected.of_trace(trace), bytes.fromhex(span))
    root = f"infer {model}"
    expected = {root, f"{root} / ksrv.queue", f"{root} / ksrv.batch", f"{root} / ksrv.batch / mine"}
    expected |= {f"{root} / ksrv.batch / {stage}" for stage in STAGES}
    assert set(found) - {f"{root} / ksrv.assemble"} == expected
    assert set(found.values()) == {1}


@pytest.mark.differs_in_processes("a process has no span of the batch that a handler may change")
@pytest.mark.parametrize("way", WAYS)
def test_handlers_attribute_and_tracestate_are_kept(server, collected, way):
    trace, _, parent = new_trace()
    if way == "gRPC":
        over_grpc(server, "inline", parent)
    else:
        more = {"TE": "trailers"} if way == "HTTP in Python" else {}
        over_http(server, "inline", parent, tracestate="a=1,b@c=2", **more)
    wait_until(lambda: any(one.name == "infer inline" for one in collected.of_trace(trace)))
    spans = {one.name: one for one in collected.of_trace(trace)}
    attributes = {one.key: one.value for one in spans["ksrv.batch"].attributes}
    assert attributes["mine"].int_value == 7
    assert attributes["ksrv.batch.requests"].int_value == 1
    for span in spans.values():
        assert span.trace_state == ("" if way == "gRPC" else "a=1,b@c=2")


def damaged(rng):
    """A `traceparent` with up to two changes, between letters of any case, spaces and signs; None for no header."""
    text = list(new_trace()[2])
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(text))
        text[at : at + rng.randrange(3)] = rng.choice(["", "0", "f", "ff", "F", "g", "-", "-0"])
    return rng.choice(["".join(text), "".join(text), "".join(text) + "-more", None])


def test_callers_span_is_the_one_that_opentelemetry_reads(server, collected):
    rng = random.Random(5)
    parents = {f"parent-{number}": damaged(rng) for number in range(150)}
    with requests.Session() as session:
        for name, parent in parents.items():
            headers = {"x-request-id": name} | ({} if parent is None else {"traceparent": parent})
            session.post(
                f"{server.url}/v2/models/inline/infer", data=body(), headers=headers, timeout=60
            ).raise_for_status()

    def found():
        spans = [span for span in collected.all if span.name == "infer inline"]
        named = {
            attribute.value.string_value: span
            for span in spans
            for attribute in span.attributes
            if attribute.key == "ksrv.request.id"
        }
        return {name: named[name] for name in parents if name in named}

    expected = {}
    for name, parent in parents.items():
        carrier = {} if parent is None else {"traceparent": parent}
        context = TraceContextTextMapPropagator().extract(carrier, Context())
        expected[name] = trace.get_current_span(context).get_span_context()
    sampled = {
        name for name, caller in expected.items() if not caller.is_valid or caller.trace_flags & 1
    }
    wait_until(lambda: set(found()) >= sampled)
    assert set(found()) == sampled
    for name, span in found().items():
        caller = expected[name]
        if caller.is_valid:
            assert span.trace_id.hex() == f"{caller.trace_id:032x}"
            assert span.parent_span_id.hex() == f"{caller.span_id:016x}"
        else:
            assert len(span.trace_id) == 16 and any(span.trace_id)
            assert span.parent_span_id == b""
    assert 20 < sum(caller.is_valid for caller in expected.values()) < 130


def test_times_lie_within_each_other(server, collected):
    trace, _, parent = new_trace()
    over_http(server, "inline", parent)
    wait_until(lambda: any(one.name == "infer inline" for one in collected.of_trace(trace)))
    spans = {one.name: one for one in collected.of_trace(trace)}
    root = spans["infer inline"]
    for span in spans.values():
        assert span.end_time_unix_nano >= span.start_time_unix_nano >= root.start_time_unix_nano
    assert spans["ksrv.inference"].start_time_unix_nano >= spans["ksrv.batch"].start_time_unix_nano
    attributes = {one.key: one.value for one in root.attributes}
    assert attributes["ksrv.model.name"].string_value == "inline"
    assert attributes["ksrv.request.id"].string_value == trace  # it is used as the id


@pytest.mark.parametrize("model", ["inline", "process"])
def test_a_failure_is_an_error_of_the_request(server, collected, model):
    trace, _, parent = new_trace()
    over_http(server, model, parent, -1.0)
    wait_until(lambda: any(one.name == f"infer {model}" for one in collected.of_trace(trace)))
    (root,) = [one for one in collected.of_trace(trace) if one.name == f"infer {model}"]
    assert root.status.code == 2
    assert "the stage inference of the model" in root.status.message


def test_the_requests_of_a_batch_are_linked(server, collected):
    traces = [new_trace() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: over_http(server, "batched", one[2]), traces))

    def spans(name):
        return [
            one for trace, *_ in traces for one in collected.of_trace(trace) if one.name == name
        ]

    wait_until(lambda: len(spans("infer batched")) == 4)
    batches, roots = spans("ksrv.batch"), spans("infer batched")
    assert 1 <= len(batches) < 4  # the requests were joined
    batch_ids = {one.span_id for one in batches}
    linked = {link.span_id for one in batches for link in one.links}
    parents = {one.parent_span_id for one in batches}
    for root in roots:
        if root.span_id in parents:
            continue
        assert root.span_id in linked
        assert {link.span_id for link in root.links} <= batch_ids and root.links


def test_a_caller_who_does_not_sample_is_followed(server, collected):
    trace, _, parent = new_trace()
    over_http(server, "inline", parent[:-2] + "00")
    other, _, sampled = new_trace()
    over_http(server, "inline", sampled)
    wait_until(lambda: any(one.name == "infer inline" for one in collected.of_trace(other)))
    assert collected.of_trace(trace) == []


@pytest.mark.parametrize("parent", ["", "junk", "00-" + "0" * 32 + "-00f067aa0ba902b7-01"])
def test_a_request_without_a_caller_is_a_root(server, collected, parent):
    name = f"root{secrets.token_hex(4)}"
    over_http(server, "inline", parent, **{"X-Request-ID": name})

    def roots():
        return [
            one for one in collected.all
            if any(a.key == "ksrv.request.id" and a.value.string_value == name for a in one.attributes)
        ]  # fmt: skip

    wait_until(roots)
    (root,) = roots()
    assert root.parent_span_id == b""


def test_a_collector_that_is_gone_costs_no_request(tmp_path):
    write_model(tmp_path, "inline", TRACES_ITSELF, VECTOR)
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with Server(tmp_path, trace="otlp", environment=variables) as running:
        for _ in range(20):
            over_http(running, "inline", new_trace()[2])


def settings_of(server, model=""):
    path = f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"
    return server.url + path


def traced(collected, server, model, count):
    """How many of so many requests without a caller's span are traced."""
    before = collected.named(f"infer {model}")
    for _ in range(count):
        url = f"{server.url}/v2/models/{model}/infer"
        assert requests.post(url, data=body(), timeout=60).status_code == 200
    trace, _, parent = new_trace()
    requests.post(settings_of(server, model), json={"trace_level": ["TIMESTAMPS"]}, timeout=60)
    over_http(server, model, parent)  # spans come in order: those before it are there by then
    wait_until(lambda: any(one.name == f"infer {model}" for one in collected.of_trace(trace)))
    return collected.named(f"infer {model}") - before - 1


AT_START = {
    "trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0",
    "trace_file": "", "trace_mode": "opentelemetry",
}  # fmt: skip
BACK = {"trace_level": None, "trace_rate": None}


@pytest.fixture
def settings(server):
    yield server
    for model in ("", "inline", "process"):
        assert requests.post(settings_of(server, model), json=BACK, timeout=60).json() == AT_START


@pytest.mark.parametrize("model", ["inline", "process"])
def test_a_model_that_is_not_to_be_traced_is_not(settings, collected, model):
    off = requests.post(settings_of(settings, model), json={"trace_level": "OFF"}, timeout=60)
    assert off.json() == AT_START | {"trace_level": ["OFF"]}
    assert requests.get(settings_of(settings), timeout=60).json() == AT_START
    assert traced(collected, settings, model, 5) == 0
    assert traced(collected, settings, model, 5) == 5


def test_one_of_so_many_requests_is_traced(settings, collected):
    for_all = requests.post(settings_of(settings), json={"trace_rate": "4"}, timeout=60)
    assert for_all.json() == AT_START | {"trace_rate": "4"}
    assert requests.get(settings_of(settings, "inline"), timeout=60).json() == for_all.json()
    assert traced(collected, settings, "inline", 12) == 3
    own = requests.post(settings_of(settings, "inline"), json={"trace_rate": 1}, timeout=60)
    assert own.json() == AT_START
    assert traced(collected, settings, "inline", 12) == 12


def test_rate_counts_only_requests_without_a_valid_callers_span(settings, collected):
    requests.post(settings_of(settings, "inline"), json={"trace_rate": 1000}, timeout=60)
    before = collected.named("infer inline")
    for parent in ("", "x", "00-" + "0" * 32 + "-" + "b" * 16 + "-01"):
        over_http(settings, "inline", parent)
    trace, _, parent = new_trace()
    over_http(settings, "inline", parent)
    wait_until(lambda: any(one.name == "infer inline" for one in collected.of_trace(trace)))
    assert collected.named("infer inline") - before == 2  # the first of a thousand, and the last


def test_setting_of_all_models_holds_for_a_model_that_is_loaded_later(tmp_path, collected):
    write_model(tmp_path, "early", TRACES_ITSELF, VECTOR)
    with Server(tmp_path, trace="otlp", environment=collected.variables) as server:
        requests.post(settings_of(server), json={"trace_level": "OFF"}, timeout=60)
        write_model(tmp_path, "late", TRACES_ITSELF, VECTOR)
        url = f"{server.url}/v2/repository/models/late/load"
        requests.post(url, timeout=60).raise_for_status()
        assert traced(collected, server, "late", 3) == 0


def test_instances_of_a_version_share_their_rules(monkeypatch):
    monkeypatch.setattr(tracing._OF_PROCESS, "export", object())
    rules = tracing.tracing_of("m", "1")
    assert tracing.tracing_of("m", "1") is rules
    assert tracing.tracing_of("m", "2") is not rules


@pytest.mark.parametrize(
    ("sampler", "share", "expected"),
    [
        ("", "", (True, 1.0)),
        ("always_on", "0.5", (False, 1.0)),
        ("always_off", "", (False, 0.0)),
        ("traceidratio", "0.25", (False, 0.25)),
        ("parentbased_always_off", "", (True, 0.0)),
        ("PARENTBASED_TRACEIDRATIO", "0.25", (True, 0.25)),
    ],
)
def test_samplers_of_the_environment(sampler, share, expected, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    assert tracing.configured_sampler() == expected


def test_share_of_the_traces_is_the_one_that_opentelemetry_chooses(tmp_path, collected):
    write_model(tmp_path, "shared", TRACES_ITSELF, VECTOR)
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    traces = []
    with Server(tmp_path, trace="otlp", environment=collected.variables | sampler) as server:
        for number in range(40):
            trace, _, parent = new_trace()
            traces.append(trace)
            over_http(server, "shared", parent[:-1] + str(number % 2))  # the caller decides nothing
    expected = {one for one in traces if TraceIdRatioBased(0.5).should_sample(None, int(one, 16), "").decision.is_sampled()}  # fmt: skip
    found = {one.trace_id.hex() for one in collected.all if one.name == "infer shared"}
    assert found == expected and 0 < len(found) < 40


def lost_spans(server):
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    [value] = re.findall(r"^ksrv_lost_spans_total (\S+)$", text, re.M)
    return float(value)


def test_spans_that_find_no_room_beside_a_slow_collector_are_counted(tmp_path):
    write_model(tmp_path, "plain", "def inference(x): return {'y': x}\n", VECTOR)
    fields = f"traceparent: {new_trace()[2]}", f"tracestate: a={'v' * 250}"
    message = infer_message("plain", None, *fields)
    count = 12_000
    with collecting() as slow:
        variables = slow.variables | {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
        with Server(tmp_path, trace="otlp", environment=variables) as server:
            over_http(server, "plain", new_trace()[2])
            wait_until(lambda: any(one.name == "infer plain" for one in slow.all))
            of_each = len(slow.all)
            slow.answering.clear()
            with open_connection(server.http) as client, ThreadPoolExecutor(1) as pool:
                last = infer_message("plain", None, *fields, "Connection: close")
                pool.submit(client.sendall, message * (count - 1) + last)
                assert read_all(client).count(b"HTTP/1.1 200 ") == count
            lost = lost_spans(server)
            slow.answering.set()
            total = (count + 1) * of_each
            wait_until(lambda: len(slow.all) + lost_spans(server) == total)
    assert 0 < lost < total


def test_unknown_sampler_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "sometimes")
    with pytest.raises(tracing.TracingError, match="always_on, always_off, traceidratio"):
        tracing.check_installed()


@pytest.mark.parametrize("share", ["-0.1", "1.5", "half", "nan"])
def test_share_outside_0_to_1_is_refused(share, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    with pytest.raises(tracing.TracingError, match="a number from 0 to 1"):
        tracing.check_installed()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trace_file": "/tmp/x"}, "cannot be changed by a call"),
        ({"trace_count": "5"}, "cannot be changed by a call"),
        ({"trace_level": ["TENSORS"]}, 'must be ["OFF"] or ["TIMESTAMPS"]'),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, 'must be ["OFF"] or ["TIMESTAMPS"]'),
        ({"trace_level": [["OFF"]]}, 'must be ["OFF"] or ["TIMESTAMPS"]'),
        ({"trace_level": 5}, 'must be ["OFF"] or ["TIMESTAMPS"]'),
        ({"trace_rate": "0"}, "at least 1"),
        ({"trace_rate": "-3"}, "at least 1"),
        ({"trace_rate": "9" * 5000}, "at least 1"),
        ({"trace_rate": 10**30}, ""),
        ({"trace_rate": 1.5}, "at least 1"),
        ({"trace_rate": True}, "at least 1"),
        ({"trace_all": True}, "unknown trace setting 'trace_all'"),
    ],
)
def test_trace_settings_that_cannot_be(server, change, said):
    answer = requests.post(settings_of(server), json=change, timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert requests.get(settings_of(server), timeout=60).json() == AT_START
    assert requests.get(settings_of(server, "nope"), timeout=60).status_code == 404


def test_a_server_that_does_not_trace_says_so(tmp_path):
    write_model(tmp_path, "m", SLOW, VECTOR)
    with Server(tmp_path, grpc="off") as running:
        off = requests.get(settings_of(running), timeout=60).json()
        assert off == AT_START | {"trace_level": ["OFF"]}
        answer = requests.post(settings_of(running), json={"trace_level": ["OFF"]}, timeout=60)
        assert answer.status_code == 400
        assert "--trace otlp" in answer.json()["error"]
