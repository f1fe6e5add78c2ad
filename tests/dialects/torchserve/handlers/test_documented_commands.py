"""The commands at the top of docs/migration/torchserve.md, run as they are, by somebody new."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.paths import ROOT
from tests.support.torchserve.golden_models import TEN_LABELS, encoded, golden_classifier, picture

torch = pytest.importorskip("torch")
# A test run need not have its environment's commands on the path.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def commands():
    """Return the first block of commands, each as its words."""
    text = (ROOT / "docs/migration/torchserve.md").read_text()
    block = text.partition("```console\n")[2].partition("```")[0]
    return [shlex.split(line) for line in block.replace("\\\n", " ").strip().splitlines()]


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("torch-model-archiver", path=PATH)),
    reason="curl or torch-model-archiver is not there",
)
def test_commands_lead_from_an_archive_to_an_answer(tmp_path):
    torch.jit.script(golden_classifier()).save(str(tmp_path / "cats.pt"))
    (tmp_path / "index_to_name.json").write_text(json.dumps(TEN_LABELS))
    (tmp_path / "cat.jpg").write_bytes(encoded(picture(), "JPEG", quality=90))
    (tmp_path / "store").mkdir()
    archiver, examine, serve, ask = commands()

    def run(words):
        return subprocess.run(
            words,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PATH": PATH},
        ).stdout

    run(archiver)
    assert examine[0] == "ksrv"
    environment = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    path = str(tmp_path / examine[2])
    done = subprocess.run([sys.executable, "-m", "ksrv", examine[1], path], **environment)
    assert done.stdout.splitlines() == ["cats 1.0", "  handler image_classifier"]
    assert serve == ["ksrv", "serve", "store", "--torchserve-api"]
    with Server(tmp_path / serve[2], torchserve_api=True) as server:
        answer = json.loads(run([word.replace("127.0.0.1:8080", server.http) for word in ask]))
    assert len(answer) == 5
    assert set(answer) <= {f"class{index}" for index in range(10)}
