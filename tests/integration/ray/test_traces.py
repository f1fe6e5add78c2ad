"""Traces that a client begins go on in a replica, over HTTP and gRPC."""

import secrets

import grpc
import pytest
import requests

from tests.support.models import ECHO, VECTOR, write_model
from tests.support.ray.ray_cluster import BODY, listed
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer

pytest.importorskip("ray")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from tests.support.otlp_collector import collecting

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def collected():
    with collecting() as spans:
        yield spans


@pytest.fixture(scope="module")
def address(cluster, collected, tmp_path_factory):
    from ray import serve

    import ksrv.ray

    models = tmp_path_factory.mktemp("models")
    write_model(models, "echo", ECHO, VECTOR + "executor: process\n")
    settings = {"insecure": True, "drain_delay": 0, "trace": "otlp"}
    actor = {"runtime_env": {"env_vars": collected.variables}}
    serve.run(ksrv.ray.app(models, settings=settings, actor=actor))
    yield listed(1)[0]
    serve.delete("default")


def over_http(address, parent):
    url = f"http://{address}/v2/models/echo/infer"
    assert requests.post(url, BODY, headers={"traceparent": parent}).status_code == 200


def over_grpc(address, parent):
    request = infer_request("echo", ("x", "FP32", [1, 4]), raw=[bytes(16)])
    with grpc.insecure_channel(address) as channel:
        stub_infer(channel)(request, timeout=60, metadata=[("traceparent", parent)])


@pytest.mark.parametrize("call", [over_http, over_grpc])
def test_one_request_is_one_tree(address, collected, call):
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    call(address.grpc if call is over_grpc else address.http, f"00-{trace}-{span}-01")
    wait_until(lambda: "ksrv.inference" in {one.name for one in collected.of_trace(trace)})
    wait_until(lambda: span in {one.parent_span_id.hex() for one in collected.of_trace(trace)})
    found = collected.of_trace(trace)
    parents = {one.parent_span_id.hex() for one in found}
    assert parents <= {span} | {one.span_id.hex() for one in found}
    assert sum(one.parent_span_id.hex() == span for one in found) == 1
