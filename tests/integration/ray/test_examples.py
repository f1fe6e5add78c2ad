"""The files of examples/ray, as a reader would use them."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.support.models import write_double
from tests.support.paths import ROOT
from tests.support.ray.ray_cluster import deploy, listed

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "ray"


def test_the_config_file_and_its_client(cluster, tmp_path):
    from ray import serve

    write_double(tmp_path / "models")
    (tmp_path / "tokens").write_text("the-token\n")
    text = (EXAMPLE / "serve.yaml").read_text()
    for written, here in (("/models", "models"), ("/etc/ksrv/tokens", "tokens")):
        assert text.count(f" {written}") == 1
        text = text.replace(f" {written}", f" {tmp_path / here}")
    config = yaml.safe_load(text)
    deploy(config)
    try:
        listed(1)
        command = [sys.executable, str(EXAMPLE / "client.py"), cluster.url, "double"]
        environment = os.environ | {"KSRV_TOKEN": "the-token"}
        answered = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert answered.stdout.count('"data":[2.0,4.0,6.0,8.0]') == 4, answered.stdout
        del environment["KSRV_TOKEN"]
        refused = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert refused.returncode != 0
        assert "401" in refused.stderr
    finally:
        serve.delete("default")
