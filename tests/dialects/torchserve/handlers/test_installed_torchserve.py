"""The real torchserve package beside ksrv: the classes of the package serve the imports, with the same answers.

The real package is in a separate virtual environment under build/, made on first use, which sees
this environment's torch and numpy. If it cannot be installed, the test is skipped with the reason.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.support.paths import ROOT
from tests.support.torchserve.archives import HANDLERS

pytestmark = pytest.mark.long

PLACE = ROOT / "build" / "torchserve-venv"
PACKAGES = ["torchserve==0.12.0", "psutil", "enum-compat"]
PROGRAM = ROOT / "tests/support/torchserve/runner_program.py"

ITEMS = [
    "bytes", "str", "str_utf8", "number", "int", "true", "null", "list", "dict_item", "nan",
    "tuple_item", "unserialisable", "tensor", "exception", "cuda_message", "memory_error",
    "prediction_default", "prediction_400", "prediction_422", "prediction_413", "return_dict",
    "return_none", "return_tuple", "return_tensor", "wrong_length", "status", "metrics",
]  # fmt: skip


@pytest.fixture(scope="session")
def real_python():
    """The interpreter of an environment with the real torchserve."""
    python = PLACE / "bin" / "python"
    site = PLACE / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    if not (site / "ts").is_dir():
        made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", PLACE], check=False)
        assert made.returncode == 0
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
        command += PACKAGES
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(PLACE)
            pytest.skip(f"torchserve cannot be installed here: {done.stderr.strip()[-300:]}")
    (site / "tested.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def answers(python, kind, jobs, folder):
    results = folder / f"{kind}.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [python, PROGRAM, jobs, results, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(results.read_text())


OWN_ENVELOPE = """
from ts.torch_handler.request_envelope.base import BaseEnvelope

class Reversed(BaseEnvelope):
    def parse_input(self, data):
        return [row["body"][::-1] for row in data]

    def format_output(self, answers):
        return [str(answer["type"]) for answer in answers]
"""


def folders(tmp_path, files):
    """Folders with a handler and a model.yaml, and for each its batches: bodies, and whether streamed."""
    modes = [([{"mode": mode}] * 2, False) for mode in ITEMS if mode != "tensor"]
    modes += [([{"mode": "stream"}] * 2, True), ([{"mode": "stream"}] * 2, False)]
    numbers = [([[1, 2, 3, 4], [0, 0, 0, 1]], False)]
    texts = [(["ab", "c"], False)]
    made = [
        ("outcome", "outcome_handler.py", [], "", modes),
        ("numbers", "numbers_handler.py", ["line.pt"], "model: line.pt\n", numbers),
        ("micro", "micro_handler.py", ["line.pt"], "model: line.pt\n", numbers),
        ("enveloped", "envelope_handler.py", [], "envelope: own_envelope\n", texts),
    ]
    found = []
    for name, handler, copies, lines, batches in made:
        folder = tmp_path / name
        folder.mkdir()
        # Without an archive around it, a handler of TorchServe's is known by this import.
        (folder / handler).write_text("import ts\n" + (HANDLERS / handler).read_text())
        for file in copies:
            shutil.copy(files / file, folder)
        (folder / "own_envelope.py").write_text(OWN_ENVELOPE)
        (folder / "model.yaml").write_text(f"handler: {handler}\n{lines}")
        found.append((str(folder), batches))
    return found


def test_installed_torchserve_is_left_alone_and_works(tmp_path, model_files, real_python):
    """Its own classes serve the imports, and ksrv's runner answers as with the stand-in."""
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps(folders(tmp_path, model_files)))
    real = answers(real_python, "real", jobs, tmp_path)
    ours = answers(sys.executable, "stand-in", jobs, tmp_path)
    for name, expected in ours.items():
        for place, (one, other) in enumerate(zip(expected, real[name], strict=True)):
            assert one == other, f"batch {place} of {name}"
    streamed, plain = ours["outcome"][-2:]
    assert len(streamed["chunks"]) == 3
    assert (plain["chunks"], plain["items"]) == ([], streamed["items"])
