"""Repositories of seven models each, made with the packages that people use, load every time and answer rightly."""

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server

for package in ("transformers", "sklearn", "xgboost", "lightgbm", "pandas", "torch"):
    pytest.importorskip(package, reason="make test-packages installs it")

LOADS = int(os.environ.get("LOADS", "20"))


@pytest.fixture(scope="module", params=["transformers", "tabular"])
def repository(request, tmp_path_factory):
    """A repository, and a question to each of its models."""
    root = tmp_path_factory.mktemp(request.param)
    models = importlib.import_module(f"tests.integration.packages.{request.param}_models")
    asked = models.write(root)
    assert len(asked) == 7
    return root, asked


@pytest.mark.timeout(3600)
def test_the_models_load_every_time(repository):
    root, asked = repository
    command = [sys.executable, "-m", "ksrv", "check", "--json", "--parallel-loads", "7", str(root)]
    failed = []
    for number in range(LOADS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        models = json.loads(done.stdout)["models"]
        assert len(models) == len(asked)
        failed += [(number, one["name"], one["reason"]) for one in models if not one["ok"]]
    assert not failed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_models_answer_as_their_packages_do(repository, executor):
    root, asked = repository
    for name in asked:
        settings = root / name / "model.yaml"
        kept = settings.read_text().splitlines() if settings.exists() else ["handler: handler.py"]
        lines = [line for line in kept if not line.startswith("executor:")]
        settings.write_text("\n".join([*lines, f"executor: {executor}", ""]))
    with Server(root, start_timeout=300) as server, Client(server.url, timeout=60) as client:
        for name, question in asked.items():
            (answer,) = client.infer(name, question.inputs).values()
            np.testing.assert_allclose(answer, question.answer, rtol=1e-4, atol=1e-5, err_msg=name)
