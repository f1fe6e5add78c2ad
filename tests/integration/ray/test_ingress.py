"""Requests to a replica's own ports, and the lists of replicas on Ray's HTTP ingress."""

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http

from tests.support.models import ECHO, VECTOR, write_model
from tests.support.ray.ray_cluster import BODY, listed
from tests.support.wait_until import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

NUMBERS = np.array([[1, 2, 3, 4]], np.float32)


def infer(module, address):
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
    serve.run(ksrv.ray.app(models, settings={"insecure": True, "drain_delay": 0}))
    yield listed(1)[0]
    serve.delete("default")


def test_requests_to_a_replica(address):
    assert np.array_equal(infer(tritonclient.http, address.http), NUMBERS)
    assert np.array_equal(infer(tritonclient.grpc, address.grpc), NUMBERS)


def test_ingress_serves_no_models(address, cluster):
    refused = requests.post(f"{cluster.url}/v2/models/echo/infer", BODY)
    assert (refused.status_code, "/-/addresses" in refused.json()["error"]) == (404, True)
    assert requests.post(f"{cluster.url}/-/addresses").status_code == 404


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
        url = f"{cluster.url}/guarded/-/addresses"
        refused = requests.get(url)
        assert (refused.status_code, "error" in refused.json()) == (401, True)
        headers = {"Authorization": "Bearer the-token"}
        assert requests.get(url, headers=headers).status_code == 200
    finally:
        serve.delete("guarded")


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
