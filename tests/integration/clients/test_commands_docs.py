"""Every shell command of docs/commands.md, in order, with short measurements."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from ksrv.cli.main import SECTIONS
from ksrv.testing import Server
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "commands.md"

SHORT = {
    "bench": ["--seconds", "0.2", "--warm-up", "0.1", "--trial-seconds", "0.05"],
}
"""Given behind a command's own options, of which the last one holds."""


def run(words, folder, **environment):
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=250,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


def test_the_page_lists_every_command():
    text = PAGE.read_text()
    for commands in SECTIONS.values():
        for name in commands:
            assert f"`ksrv {name}`" in text


def test_the_section_shown_is_one_of_a_model():
    (section,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert set(yaml.safe_load(section)) == {"batching", "instances", "threads"}


@pytest.mark.timeout(600)
def test_the_commands_run(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    written = [line for line in lines if " init " in line]
    for line in written:
        assert run([sys.executable, "-m", *shlex.split(line)], tmp_path).returncode == 0
    assert "ksrv serve models" in lines
    with Server(tmp_path / "models") as server:
        for line in lines:
            if line in written or line == "ksrv serve models":
                continue
            line = line.replace("127.0.0.1:8080", server.http).replace(
                "127.0.0.1:9000", server.grpc
            )
            program, *words = shlex.split(line)
            command = [sys.executable, *words]
            if program == "ksrv":
                command = [sys.executable, "-m", "ksrv", *words, *SHORT.get(words[0], [])]
            done = run(command, tmp_path, KSRV_URL=server.url)
            ended_well = done.returncode == 0 or (words[0] == "doctor" and done.returncode == 1)
            assert ended_well, f"{line}\n{done.stdout}\n{done.stderr}"
