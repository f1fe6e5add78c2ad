"""Defects that were in the native core once, or that a rule of it prevents, put in one by one: the simulator finds each, by
what it does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulator.run import build, certificate
from tests.support.paths import ROOT

PLANTED = sorted(Path(__file__).with_name("planted").glob("*.patch"))
SEEDS = 4000
"""Ten minutes of one core, however busy it is."""
NEEDED = ("native", "tests/simulator", "tests/support/native", "tools")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("patch", PLANTED, ids=lambda path: path.stem)
def test_planted_defect_is_found(patch, tmp_path):
    for folder in NEEDED:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    subprocess.run(["patch", "-p1", "-i", patch], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ksrv" / "_native").mkdir(parents=True)
    program = build(tmp_path)
    with certificate() as files:
        found = subprocess.run(
            [program, *files, "1", str(SEEDS)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert found.returncode == 1, found.stdout
    told = re.search("^Found as: (.*)$", patch.read_text(), re.MULTILINE)
    assert re.search(told[1], found.stderr), found.stderr[:4000]
