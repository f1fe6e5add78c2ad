"""Requests to replicas: over their own ports, and by Ray's HTTP ingress."""

import json

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, VECTOR, write_model
from tests.support.ray.ray_cluster import BODY, listed
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import connect, retry_seconds, row_request, stub_infer

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

NUMBERS = np.array([[1, 2, 3, 4]], np.float32)


def infer(module, address):
    """Send the numbers with Triton's client, and return what comes back."""
    client = module.InferenceServerClient(address)
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(NUMBERS)
    answer = client.infer("echo", [tensor])
    client.close()
    return answer.as_numpy("y")


@pytest.fixture(scope="module")
def address(cluster, tmp_path_factory):
    from ray import serve

    import ksrv.ray

    models = tmp_path_factory.mktemp("models")
    write_model(models, "echo", ECHO, VECTOR)
    write_model(models, "rare", ECHO, f"{VECTOR}rate_limit: 0.001\n")
    serve.run(ksrv.ray.app(models, settings={"insecure": True, "drain_delay": 0}))
    yield listed(1)[0]
    serve.delete("default")


def test_requests_to_a_replica_and_by_the_ingress(address, cluster):
    assert np.array_equal(infer(tritonclient.http, address.http), NUMBERS)
    assert np.array_equal(infer(tritonclient.grpc, address.grpc), NUMBERS)
    by_ray = cluster.url.removeprefix("http://")
    assert np.array_equal(infer(tritonclient.http, by_ray), NUMBERS)
    assert np.array_equal(infer(tritonclient.grpc, cluster.grpc), NUMBERS)

    direct, forwarded = (
        requests.post(f"{url}/v2/models/echo/infer", BODY, headers={"X-Request-ID": "mine"})
        for url in (f"http://{address.http}", cluster.url)
    )
    assert forwarded.json() == direct.json()
    assert forwarded.headers["Content-Type"] == direct.headers["Content-Type"]
    assert forwarded.headers["Content-Length"] == direct.headers["Content-Length"]


def test_forwarded_requests_keep_their_form(address, cluster):
    infer_url = f"{cluster.url}/v2/models/echo/infer"
    chunks = (BODY[at : at + 10] for at in range(0, len(BODY), 10))
    assert requests.post(infer_url, chunks).json()["outputs"][0]["data"] == [1, 2, 3, 4]

    missing = requests.post(f"{cluster.url}/v2/models/no%20model%3F/infer", BODY)
    assert (missing.status_code, "no model?" in missing.json()["error"]) == (404, True)
    refused = requests.post(infer_url, b"{")
    assert refused.status_code == 400
    assert (
        refused.json() == requests.post(f"http://{address.http}/v2/models/echo/infer", b"{").json()
    )
    assert requests.get(f"{cluster.url}/v2/models/echo").json()["name"] == "echo"
    assert "echo" in requests.get(f"{cluster.url}/metrics").text

    rows = 20000
    values = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [0.5] * 4 * rows}
    large = requests.post(infer_url, json.dumps({"inputs": [values]}))
    assert large.json()["outputs"][0]["data"] == values["data"]


def test_a_forwarded_caller_is_no_caller_of_this_machine(address, cluster):
    unload = "/v2/repository/models/echo/unload"
    assert requests.post(cluster.url + unload).status_code == 403
    with tritonclient.grpc.InferenceServerClient(cluster.grpc) as client:
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            client.unload_model("echo")
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*'nope'"):
            client.get_model_metadata("nope")
    assert requests.get(f"{cluster.url}/v2/models/echo/ready").status_code == 200


def test_a_refusal_by_the_ingress_says_when_to_come_again(address, cluster):
    with connect(cluster.grpc) as channel:
        stub_infer(channel)(row_request("rare"), timeout=60)
        with pytest.raises(grpc.RpcError) as told:
            stub_infer(channel)(row_request("rare"), timeout=60)
    assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 900 < retry_seconds(told.value) <= 1000


def test_the_request_id_of_a_call_comes_back(address, cluster):
    given = ("x-request-id", "mine")
    with connect(cluster.grpc) as channel:
        _, call = stub_infer(channel).with_call(row_request("echo"), timeout=60, metadata=[given])
        assert given in call.trailing_metadata()


def test_the_ingress_lists_the_addresses(address, cluster):
    listed = requests.get(f"{cluster.url}/-/addresses").json()
    assert [(one["http"], one["grpc"]) for one in listed["replicas"]] == [
        (address.http, address.grpc)
    ]


def test_the_addresses_are_for_callers_with_a_token(cluster, models, tmp_path):
    from ray import serve

    import ksrv.ray

    tokens = tmp_path / "tokens"
    tokens.write_text("the-token\n")
    settings = {"token_file": tokens, "drain_delay": 0}
    serve.run(ksrv.ray.app(models, settings=settings), name="guarded", route_prefix="/guarded")
    try:
        wait_until(lambda: len(ksrv.ray.addresses("guarded")) == 1)
        for path in ("/-/addresses", "/v2/models/echo"):
            url = f"{cluster.url}/guarded{path}"
            refused = requests.get(url)
            assert (refused.status_code, "error" in refused.json()) == (401, True)
            headers = {"Authorization": "Bearer the-token"}
            assert requests.get(url, headers=headers).status_code == 200
    finally:
        serve.delete("guarded")


def test_the_ingress_below_a_prefix(cluster, models):
    from ray import serve

    import ksrv.ray

    settings = {"insecure": True, "drain_delay": 0}
    serve.run(ksrv.ray.app(models, settings=settings), name="second", route_prefix="/below")
    try:
        answer = requests.post(f"{cluster.url}/below/v2/models/echo/infer", BODY)
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]
        wait_until(lambda: len(ksrv.ray.addresses("second")) == 1)
        assert len(requests.get(f"{cluster.url}/below/-/addresses").json()["replicas"]) == 1
    finally:
        serve.delete("second")


def test_a_replica_that_cannot_start_says_why(cluster, tmp_path):
    import ray
    from ray import serve

    import ksrv.ray

    app = ksrv.ray.app(tmp_path / "missing", max_constructor_retry_count=1)
    with pytest.raises(RuntimeError):
        serve.run(app, name="broken", route_prefix="/broken")
    told = serve.status().applications["broken"].deployments["ksrv"].message
    assert "missing" in told
    nodes = {node["NodeManagerAddress"] for node in ray.nodes()}
    assert any(f"on the node {node}: the server ended" in told for node in nodes), told
    serve.delete("broken")
