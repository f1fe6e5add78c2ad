"""Replicas with certificates and tokens."""

import numpy as np
import pytest
import requests
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.certificates import self_signed
from tests.support.models import ECHO, VECTOR, write_model
from tests.support.ray.ray_cluster import BODY, listed
from tests.support.ray.ray_cluster import deploy as deploy_config
from tests.support.wait_until import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

NUMBERS = np.array([[1, 2, 3, 4]], np.float32)
TOKEN = {"authorization": "Bearer the-token"}
INFER = "/v2/models/echo/infer"


def sign(folder):
    """Make a certificate for the cluster's nodes, including a node with the machine's address."""
    import ray

    nodes = {node["NodeManagerAddress"] for node in ray.nodes()}
    return self_signed(folder / "tls", addresses=nodes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def deploy(cluster, folder):
    """Run the application with another state of its files, as a Serve config file does."""
    from ray import serve

    write_model(folder / "models", "echo", ECHO, VECTOR)
    key, certificate = sign(folder)
    (folder / "tokens").write_text("the-token\n")
    settings = {
        "tls_cert": str(certificate),
        "tls_key": str(key),
        "token_file": str(folder / "tokens"),
        "drain_delay": 0,
    }

    def run(state):
        application = {
            "name": "default",
            "import_path": "ksrv.ray:build",
            "args": {
                "models": str(folder / "models"),
                "settings": settings,
                "autoscaling": {"min_replicas": 1, "max_replicas": 1},
            },
            "deployments": [{"name": "ksrv", "user_config": {"files": state}}],
        }
        deploy_config({"applications": [application]})
        return listed(1)[0]

    yield run
    serve.delete("default")


@pytest.fixture(scope="module")
def address(deploy):
    return deploy("first")


def infer(address, certificate, headers):
    tensor = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(NUMBERS)
    tls = {"ssl": True, "root_certificates": str(certificate)} if certificate else {}
    with tritonclient.grpc.InferenceServerClient(address, **tls) as client:
        return client.infer("echo", [tensor], headers=headers).as_numpy("y")


def test_http_of_a_replica(address, folder):
    assert address.tls
    url = f"https://{address.http}{INFER}"
    trusted = folder / "tls" / "server.pem"
    assert requests.post(url, BODY, headers=TOKEN, verify=trusted).status_code == 200
    assert requests.post(url, BODY, verify=trusted).status_code == 401
    plain = requests.post(f"http://{address.http}{INFER}", BODY, headers=TOKEN)
    assert (plain.status_code, "without TLS" in plain.text) == (400, True)


def test_grpc_of_a_replica(address, folder):
    trusted = folder / "tls" / "server.pem"
    assert np.array_equal(infer(address.grpc, trusted, TOKEN), NUMBERS)
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        infer(address.grpc, trusted, None)
    with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
        infer(address.grpc, None, TOKEN)


def test_targets_for_prometheus(address, cluster, folder):
    url = f"{cluster.url}/-/prometheus-targets"
    assert requests.get(url).status_code == 401
    [target] = requests.get(url, headers=TOKEN).json()
    assert target["targets"] == [address.http]
    page = requests.get(
        f"{target['labels']['__scheme__']}://{address.http}/metrics",
        headers=TOKEN,
        verify=folder / "tls" / "server.pem",
    )
    assert "ksrv_pending_requests" in page.text


def test_new_certificates_and_tokens_replace_no_replica(address, deploy, folder):
    sign(folder)
    (folder / "tokens").write_text("another-token\nthe-token\n")
    trusted = folder / "tls" / "server.pem"
    url = f"https://{address.http}{INFER}"
    new = {"authorization": "Bearer another-token"}

    def works():
        try:
            return requests.post(url, BODY, headers=new, verify=trusted).status_code == 200
        except requests.exceptions.SSLError:
            return False

    assert not works()
    assert deploy("second") == address
    wait_until(works)
    assert np.array_equal(infer(address.grpc, trusted, new), NUMBERS)
    assert deploy("second") == address
