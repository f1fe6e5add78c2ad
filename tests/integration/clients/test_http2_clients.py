"""Clients of gRPC in other languages, if this machine has them."""

import os
import shutil
import subprocess

import pytest

from ksrv.testing import Server
from tests.support.model_files.triton_models import write_echoes
from tests.support.paths import ROOT
from tests.support.wire.grpc_calls import infer_request

CLIENT = ROOT / "tests" / "support" / "clients" / "grpc_js_client.js"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("echoes")
    write_echoes(root)
    with Server(root) as running:
        yield running


@pytest.mark.skipif(
    "GRPC_JS_MODULES" not in os.environ or shutil.which("node") is None,
    reason="GRPC_JS_MODULES names no node_modules with @grpc/grpc-js and @grpc/proto-loader",
)
def test_grpc_js(server):
    done = subprocess.run(
        ["node", CLIENT, server.grpc, ROOT / "protos" / "inference.proto"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NODE_PATH": os.environ.get("GRPC_JS_MODULES", "")},
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.skipif(
    shutil.which("h2load") is None, reason="needs h2load (Debian: apt-get install nghttp2-client)"
)
def test_h2load(server, tmp_path):
    message = infer_request("echo_FP32", ("x", "FP32", [1, 2]), raw=[bytes(8)]).SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    target = f"http://{server.grpc}{INFER}"
    fields = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run(
        ["h2load", "-n", "400", "-c", "4", "-m", "10", "-d", body, *fields, target],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "400 succeeded, 0 failed, 0 errored" in done.stdout, done.stdout
    assert "400 2xx" in done.stdout
