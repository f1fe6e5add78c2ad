"""Stateful models of a config.json: the variables of the file are a state of each sequence."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.paths import ROOT
from tests.support.wait_until import wait_until

pytest.importorskip("openvino", reason="make test-openvino installs it")

from tests.support.model_files.openvino_models import (
    write_looped_sum,
    write_running_sum,
    write_scale,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("stateful")
    write_running_sum(root / "models/sum/1/model.xml", first=10)
    write_looped_sum(root / "models/loop/1/model.xml")
    write_scale(root / "models/scale/1/model.xml", 2)
    models = [
        {"name": "sum", "base_path": "models/sum", "stateful": True, "max_sequence_number": 3},
        {"name": "loop", "base_path": "models/loop", "stateful": True, "low_latency_transformation": True},
        {"name": "whole", "base_path": "models/loop", "stateful": True},
        {"name": "forgets", "base_path": "models/sum"},
        {"name": "none", "base_path": "models/scale", "stateful": True, "low_latency_transformation": True},
    ]  # fmt: skip
    config = root / "config.json"
    config.write_text(json.dumps({"model_config_list": [{"config": one} for one in models]}))
    with Server(config, wait_ready=False, start_timeout=120) as made:
        wait_until(lambda: "models loaded" in made.log)
        yield made


def index(server):
    client = tritonclient.http.InferenceServerClient(server.http)
    return {one["name"]: one for one in client.get_model_repository_index()}


def ask(server, model, values, name, **flags):
    given = tritonclient.grpc.InferInput("x", [1, len(values)], "FP32")
    given.set_data_from_numpy(np.float32([values]))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        answer = client.infer(model, [given], sequence_id=name, **flags)
    return answer.as_numpy("y").tolist()


def test_each_sequence_has_variables_of_its_own(server):
    first = {"sequence_start": True}
    assert ask(server, "sum", [1, 2], 7, **first) == [[11, 12]]
    assert ask(server, "sum", [100, 100], 8, **first) == [[110, 110]]
    assert ask(server, "sum", [1, 2], 7) == [[12, 14]]
    assert ask(server, "sum", [1, 1], 8, sequence_end=True) == [[111, 111]]
    assert ask(server, "sum", [1, 2], 7, sequence_end=True) == [[13, 16]]
    assert ask(server, "sum", [1, 2], 7, **first, sequence_end=True) == [[11, 12]]
    with pytest.raises(InferenceServerException, match="no open sequence 7"):
        ask(server, "sum", [1, 2], 7)


def test_without_stateful_each_request_begins_anew(server):
    """Otherwise all clients would share the variables, and see the numbers of earlier clients."""
    for _ in range(3):
        assert ask(server, "forgets", [1, 2], 0) == [[11, 12]]
    assert "the model has variables, which begin anew with each batch" in server.log


def test_no_more_sequences_than_max_sequence_number(server):
    for name in (1, 2, 3):
        ask(server, "sum", [0, 0], name, sequence_start=True)
    with pytest.raises(InferenceServerException, match=r"limit 'sequences.max' \(3 sequences\)"):
        ask(server, "sum", [0, 0], 4, sequence_start=True)
    for name in (1, 2, 3):
        ask(server, "sum", [0, 0], name, sequence_end=True)


def test_a_loop_becomes_a_step_for_each_request(server):
    assert ask(server, "loop", [5], 9, sequence_start=True) == [[5]]
    assert ask(server, "loop", [6], 9) == [[11]]
    assert ask(server, "loop", [7], 9, sequence_end=True) == [[18]]


def test_a_file_without_variables_is_refused(server):
    found = index(server)
    assert "has no variables that could be a state; 'low_latency" in found["whole"]["reason"]
    assert found["none"]["reason"].endswith("has no variables that could be a state")


def test_the_example(tmp_path):
    folder = shutil.copytree(ROOT / "examples/openvino", tmp_path / "openvino")
    subprocess.run([sys.executable, folder / "export.py"], check=True)
    with Server(folder / "config.json") as server:
        command = [sys.executable, folder / "client.py", server.url]
        for _ in range(2):
            told = subprocess.run(command, check=True, capture_output=True, text=True)
            assert told.stdout.split() == ["1.0", "3.0", "6.0"]
