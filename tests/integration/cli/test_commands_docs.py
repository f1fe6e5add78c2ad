"""Every shell command of docs/commands.md, in order, with short measurements."""

import re
import shlex
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from ksrv.bench import batching
from ksrv.cli.main import SECTIONS, main
from ksrv.testing import Server
from tests.support.paths import ROOT

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "commands.md"

SHORT = {
    "bench": ["--seconds", "0.2", "--warm-up", "0.1", "--trial-seconds", "0.05"],
}
"""Appended to a command's options; the last value of an option wins."""


def run(line, url=""):
    """Run a command of the page; its exit status and what it printed."""
    program, *words = shlex.split(line)
    if program == "ksrv":
        words += SHORT.get(words[0], [])
        done = CliRunner().invoke(main, words, env={"KSRV_URL": url})
        return done.exit_code, done.output
    assert program == "python"
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout + done.stderr


def record_a_request(models, folder):
    """Have a server that records the requests of `mood` answer one."""
    settings = models / "mood" / "model.yaml"
    written = settings.read_text()
    settings.write_text(f"{written}record: {{to: {folder}, sample: 1}}\n")
    with Server(models) as server:
        status, printed = run('ksrv infer mood --text "what a day"', server.url)
        assert status == 0, printed
    settings.write_text(written)


def test_the_page_lists_every_command():
    text = PAGE.read_text()
    for commands in SECTIONS.values():
        for name in commands:
            assert f"`ksrv {name}`" in text


def test_shown_section_is_valid_model_yaml():
    (section,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert set(yaml.safe_load(section)) == {"batching", "instances", "threads"}


def test_the_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(batching, "CONNECTIONS", (1, 4))
    monkeypatch.setattr(batching, "MOST_BATCH", 2)
    monkeypatch.setattr(batching, "DELAYS_MS", (1,))
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    written = [line for line in lines if " init " in line]
    for line in written:
        assert run(line)[0] == 0
    assert "ksrv serve models" in lines
    record_a_request(tmp_path / "models", tmp_path / "records")
    with Server(tmp_path / "models") as server:
        for line in lines:
            if line in written or line == "ksrv serve models":
                continue
            for in_the_page, here in {
                "127.0.0.1:8080": server.http,
                "127.0.0.1:9000": server.grpc,
                "/var/lib/ksrv/records": str(tmp_path / "records"),
            }.items():
                line = line.replace(in_the_page, here)
            status, printed = run(line, server.url)
            ended_well = status == 0 or (line.startswith("ksrv doctor") and status == 1)
            assert ended_well, f"{line}\n{printed}"
