"""`ksrv init`: each folder as it is written, by the commands that are printed."""

import os
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ksrv.cli.init import KINDS
from ksrv.cli.main import main
from ksrv.testing import Server
from tests.support.paths import ROOT

pytestmark = pytest.mark.long


def init(*arguments):
    return CliRunner().invoke(main, ["init", *map(str, arguments)])


def run(line, folder):
    """Run a printed command in a folder, and return what it prints."""
    words = shlex.split(line)
    if (
        words[0] == "ksrv" and words[1] != "check"
    ):  # that loads handlers, which may change a process
        done = CliRunner().invoke(main, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return done.output
    if words[0] in ("python", "ksrv"):
        words[:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "ksrv"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=200,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_that_is_printed_works(kind, tmp_path, monkeypatch):
    if kind == "torch":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    done = init(kind, "models/mine")
    assert done.exit_code == 0, done.output
    check, test, serve, _, *calls = done.output.partition("Try it:\n")[2].splitlines()
    assert "1 of 1 models are ready" in run(check, tmp_path)
    run(test, tmp_path)
    _, _, path, *flags = shlex.split(serve)
    settings = {flag.removeprefix("--").replace("-", "_"): True for flag in flags}
    with Server(tmp_path / path, **settings) as server:
        for line in calls:
            monkeypatch.setenv("KSRV_URL", server.url)
            line = line.replace("http://127.0.0.1:8080", server.url)
            if " infer " in line:
                line = line.replace(" infer ", f" infer --url {server.url} ")
            assert run(line, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_written_files_are_formatted(kind, tmp_path):
    assert init(kind, tmp_path / "mine").exit_code == 0
    for command in (["format", "--check"], ["check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", ROOT / "pyproject.toml",
             "--config", "lint.per-file-ignores = {'**' = ['D', 'E501', 'PT']}", tmp_path / "mine"],
            check=True, timeout=60,
        )  # fmt: skip


def test_the_tests_of_several_models_run_together(tmp_path):
    for kind, name in (("one-file", "first"), ("tensor", "second")):
        assert init(kind, tmp_path / "models" / name).exit_code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "models"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_each_file_is_named_once(tmp_path):
    assert init("tensor", tmp_path / "mine").exit_code == 0
    done = init("tensor", tmp_path / "mine")
    assert done.exit_code == 1 and done.output.count("sample.json") == 1


def test_files_that_are_there_are_kept(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.yaml").write_text("mine")
    done = init("text", folder)
    assert done.exit_code == 1 and "model.yaml" in done.output and "--force" in done.output
    assert [path.name for path in folder.iterdir()] == ["model.yaml"]
    assert init("text", folder, "--force").exit_code == 0
    assert "handler.py" in (folder / "model.yaml").read_text()


def test_a_folder_that_is_no_model_name_is_refused(tmp_path):
    done = init("text", tmp_path / "_x y")
    assert done.exit_code == 2 and "not a model name" in done.output
    assert init("texts", tmp_path / "x").exit_code == 2
