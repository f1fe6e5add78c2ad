"""No client can make a metric's series: names, methods, headers and ids of clients are on no page."""

import contextlib
import json
import secrets

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_double, write_model
from tests.support.wire.grpc_calls import call, infer_request, stub_infer

PATHS = (
    "/v2/models/{}/infer", "/v2/models/double/versions/{}/infer", "/v2/models/{}/versions/7/infer",
    "/v1/models/{}:predict", "/predictions/{}", "/v2/models/{}/generate", "/{}", "/v2/models/{}/stats",
    "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload",
    "/v2/models/{}/trace/setting", "/metrics?{}", "/v2/logging",
)  # fmt: skip
CALLS = {
    "ModelMetadata": "name", "ModelReady": "name", "ModelConfig": "name", "ModelStatistics": "name",
    "RepositoryModelLoad": "model_name", "RepositoryModelUnload": "model_name",
}  # fmt: skip


def document(name, **more):
    entry = {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return json.dumps({"inputs": [entry]} | more)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_model(folder, "separate", DOUBLE, VECTOR + "executor: process\n")
    with Server(folder, metrics_compat=["triton", "kserve"], workers=2) as running:
        yield running


def over_http(server, name):
    """Requests that name what there is not, in every place where a client may name something."""
    headers = {
        "X-Request-ID": name, "traceparent": name, "User-Agent": name, "Origin": f"http://{name}",
        "Accept": name, "Content-Type": name, f"X-{name}": name, "Forwarded": f"for={name}",
    }  # fmt: skip
    for path in PATHS:
        requests.post(
            server.url + path.format(name), data=document("x"), headers=headers, timeout=60
        )
    for method in (name, "PURGE"):
        requests.request(method, f"{server.url}/v2/models/double/infer", timeout=60)
    more = {"id": name, "parameters": {name: name, "sequence_id": name}}
    for model in ("double", "separate"):
        for body in (document("x", **more), document(name)):
            requests.post(f"{server.url}/v2/models/{model}/infer", data=body, timeout=60)


def over_grpc(server, name):
    metadata = [("x-request-id", name), (name, name)]
    with grpc.insecure_channel(server.grpc) as channel:
        for model in (name, "double"):
            request = infer_request(
                model, ("x", "FP32", [1, 4]), raw=[bytes(16)], id=name, parameters={name: name}
            )
            with contextlib.suppress(grpc.RpcError):
                stub_infer(channel)(request, timeout=60, metadata=metadata)
        for method in (f"/{name}/{name}", f"/inference.GRPCInferenceService/{name}"):
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary(method)(b"", timeout=60, metadata=metadata)
        for method, field in CALLS.items():
            with contextlib.suppress(grpc.RpcError):
                call(channel, method, **{field: name})


def series(server):
    """The samples of both workers' pages, without their values."""
    lines = [
        line
        for _ in range(8)
        for line in requests.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    ]
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("way", [over_http, over_grpc])
def test_names_of_clients_are_on_no_page(server, way):
    way(server, "first" + secrets.token_hex(4))
    before = series(server)
    names = ["name" + secrets.token_hex(4) for _ in range(8)]
    for name in names:
        way(server, name)
    after = series(server)
    assert after == before
    assert not any(name in line for name in names for line in after)
