"""The code of docs/record.md, run as it stands but for the places of files."""

import re
import shlex
import subprocess
import sys

import numpy as np

from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.paths import ROOT
from tests.support.wait_until import wait_until

ECHO = 'def inference(x): return {"y": x}\n'
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_documented_commands_run(tmp_path):
    blocks = BLOCK.findall((ROOT / "docs/record.md").read_text())
    records = tmp_path / "records"

    def placed(text):
        return text.replace("/var/lib/ksrv/records", str(records))

    first, last = [code for language, code in blocks if language == "yaml"]
    (command,) = [code for language, code in blocks if language == "sh"]
    (reading,) = [code for language, code in blocks if language == "python"]
    keys = placed(first).replace("0.01", "1")
    folder = write_model(tmp_path / "models", "cats", ECHO, VECTOR + keys)
    row = np.ones((1, 4), np.float32)
    with Server(tmp_path / "models") as server:
        with Client(server.http) as client:
            client.infer("cats", {"x": row})
        wait_until(lambda: any(one.stat().st_size for one in records.rglob("*.jsonl")))
        words = shlex.split(placed(command).replace("http://staging:8080", server.url))
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=120, check=True
        )
        assert "1 answers equal" in done.stdout
    done = subprocess.run(
        [sys.executable, "-c", placed(reading)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "{'x': (1, 4)}" in done.stdout
    (written, *_) = sorted(records.rglob("*.jsonl"))
    (folder / "records.jsonl").write_bytes(written.read_bytes())
    (folder / "model.yaml").write_text("handler: handler.py\n" + VECTOR + last)
    with Server(tmp_path / "models") as server, Client(server.http) as client:
        assert client.ready("cats")
