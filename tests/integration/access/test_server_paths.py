"""Only a server's log has the paths of its files: no answer contains an absolute path."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import grpc
import pytest
import requests
import torch

from ksrv.testing import Server
from tests.support.models import VECTOR, write_double, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call

READS = """
from ksrv import BaseHandler


class Reads(BaseHandler):
    def initialize(self, context):
        open(context.model_dir / "vocabulary" / "words.txt")
"""
LIBRARY = """
import torch


def handle(batch, context):
    return batch["x"]


raise RuntimeError(f"see {torch.__file__}, file://{torch.__file__} and https://pytorch.org/docs/a")
"""


def write_broken_models(root):
    write_model(root, "reads", READS, VECTOR)
    write_model(root, "isolated", READS, VECTOR + "executor: process\n")
    write_model(root, "library", LIBRARY, VECTOR)
    write_model(root, "settings", READS, VECTOR + "batchng: {}\n")
    write_model(root, "missing", READS, VECTOR + "model: nowhere.pt\n")
    write_model(root, "compiled", READS, VECTOR).joinpath("handler.py").write_text("def f(:\n")
    versions = write_model(root, "versions", READS, VECTOR)
    (versions / "1").mkdir()
    (versions / "2").mkdir()
    torch.save(torch.nn.Linear(2, 2), root / "pickled.pt")
    (root / "graph.onnx").write_bytes(b"no graph")
    (root / "archive.mar").write_bytes(b"no archive")
    (root / "a name").mkdir()
    (root / "a name" / "model.yaml").write_text("handler: handler.py\n")
    shutil.copytree(root / "settings", root / "twice")
    (root / "twice.onnx").write_bytes(b"")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    root = tmp_path_factory.mktemp("a repository") / "of models"
    root.mkdir()
    write_double(root)
    write_broken_models(root)
    with Server(root, wait_ready=False, torchserve_api=True) as running:
        wait_until(lambda: "models loaded" in running.log)
        running.root = root
        yield running


def check(server, text):
    root = server.root
    forbidden = [root, root.parent, root.parent.name, Path(torch.__file__).parent, sys.prefix]
    for path in (*forbidden, Path(tempfile.gettempdir()) / "ksrv-"):
        assert str(path) not in text, text
    # Other texts that begin with a slash are routes or links.
    assert not re.search(
        r"(?<![\w:/.\\])/(?!v[12]|predictions|explanations|models|infer|generate)\w", text
    ), text


def names(server):
    return [line["name"] for line in requests.post(f"{server.url}/v2/repository/index").json()]


def test_index_has_reasons_without_paths(broken):
    answer = requests.post(f"{broken.url}/v2/repository/index")
    reasons = {line["name"]: line["reason"] for line in answer.json() if line["reason"]}
    assert len(reasons) >= 11
    assert "model.yaml, line 5: batchng: unknown key" in reasons["settings"]
    assert "'vocabulary/words.txt'" in reasons["reads"]
    assert "'vocabulary/words.txt'" in reasons["isolated"]
    assert "see __init__.py, __init__.py and https://pytorch.org/docs/a" in reasons["library"]
    check(broken, answer.text)
    check(broken, requests.get(f"{broken.url}/v1/config").text)
    assert str(broken.root) in broken.log  # the operator learns the path


def test_model_routes_contain_no_paths(broken):
    for name in names(broken):
        for path in ("", "/ready", "/config", "/stats", "/infer", "/versions/1/infer"):
            method = "POST" if path.endswith("infer") else "GET"
            answer = requests.request(method, f"{broken.url}/v2/models/{name}{path}", data=b"{}")
            check(broken, answer.text)
        for path in (f"/predictions/{name}", f"/explanations/{name}", f"/models/{name}"):
            check(broken, requests.get(broken.url + path).text)
    check(broken, requests.get(f"{broken.url}/v2/health/ready").text)


def test_load_errors_contain_no_paths(broken):
    for name in names(broken):
        if name == "double":
            continue
        answer = requests.post(f"{broken.url}/v2/repository/models/{name}/load")
        assert answer.status_code == 500, name
        check(broken, answer.text)


def test_grpc_errors_contain_no_paths(broken):
    with grpc.insecure_channel(broken.grpc) as channel:
        check(broken, str(call(channel, "RepositoryIndex")))
        for name in names(broken):
            for method, fields in (
                ("ModelInfer", {"model_name": name}),
                ("ModelMetadata", {"name": name}),
                ("ModelConfig", {"name": name}),
                ("RepositoryModelLoad", {"model_name": name}),
            ):
                try:
                    check(broken, str(call(channel, method, **fields)))
                except grpc.RpcError as error:
                    check(broken, error.details())
