"""The example of docs/shadow.md, run as it stands but for the share."""

import re
import subprocess
import sys

import numpy as np

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import VECTOR
from tests.support.paths import ROOT

ECHO = 'def inference(x): return {"y": x}\n'
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_documented_commands_run(tmp_path):
    blocks = dict(BLOCK.findall((ROOT / "docs/shadow.md").read_text()))
    folder = tmp_path / "cats"
    for version in ("1", "2"):
        (folder / version).mkdir(parents=True)
        (folder / version / "handler.py").write_text(ECHO)
    keys = blocks["yaml"].replace("0.1}", "1.0}")
    (folder / "model.yaml").write_text(f"handler: handler.py\n{VECTOR}{keys}")
    words = blocks["sh"].split()
    least = int(words[words.index("--requests") + 1])
    words[words.index("--requests") + 1] = "20"
    assert least > 20

    def promote(server):
        command = [sys.executable, "-m", *words, "--url", server.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    with Server(tmp_path) as server, Client(server.http) as client:
        refused = promote(server)
        assert refused.returncode == 1
        assert "not promoted: 0 requests were compared, and 20 are needed" in refused.stderr
        row = np.ones((1, 4), np.float32)
        for _ in range(20):
            assert client.infer("cats", {"x": row}).model_version == "1"
        done = promote(server)
        while done.returncode:
            assert "requests were compared" in done.stderr, done.stdout + done.stderr
            done = promote(server)
        assert (
            "cats: version 2 agrees with version 1 in 20 of 20 requests\n  y: 20 of 20"
            in done.stdout
        )
        assert "version 2 serves. Until the next start" in done.stdout
        assert client.infer("cats", {"x": row}).model_version == "2"


def test_promote_over_grpc_names_the_protocol_that_it_needs(tmp_path):
    command = [sys.executable, "-m", "ksrv", "promote", "m", "--agreement", "1", "--requests", "1"]
    done = subprocess.run(
        [*command, "--url", "grpc://127.0.0.1:9000"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "expected http://HOST:PORT" in done.stderr
