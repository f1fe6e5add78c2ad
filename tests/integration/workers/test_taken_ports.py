"""A port that another process has: one sentence that says which, and what to do."""

import re
import runpy
import socket
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


def run(command):
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def check(status, printed, flag, address):
    assert status == 1
    (line,) = [line for line in printed.splitlines() if " INFO " not in line and line]
    assert re.match(rf"Error: setting '{flag}': {address} is in use; ", line)
    assert f"--{flag} HOST:PORT" in line


@pytest.mark.parametrize(("flag", "other"), [("http", "grpc"), ("grpc", "http")])
def test_serve_says_so_at_once(repository, taken, flag, other):
    done = run(["-m", "ksrv", "serve", repository, f"--{flag}", taken, f"--{other}", "127.0.0.1:0"])
    check(done.returncode, done.stderr, flag, taken)


def test_one_address_for_both_is_taken_by_the_first(repository, taken):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    done = run(["-m", "ksrv", "serve", repository, "--http", address, "--grpc", address])
    check(done.returncode, done.stderr, "http", address)


@pytest.mark.parametrize(("flag", "other"), [("http", "grpc"), ("grpc", "http")])
def test_the_demo_says_so_too(tmp_path, taken, flag, other, monkeypatch, capsys):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "digits.onnx").touch()  # a model trained earlier is kept
    demo = ROOT / "examples" / "digits" / "demo.py"
    arguments = ["--models", str(tmp_path), f"--{flag}", taken, f"--{other}", "127.0.0.1:0"]
    monkeypatch.setattr(sys, "argv", [str(demo), *arguments])
    monkeypatch.syspath_prepend(demo.parent)
    # In this process, which has imported scikit-learn: that is most of what the demo does before it serves.
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(demo), run_name="__main__")
    monkeypatch.delitem(sys.modules, "training")
    check(ended.value.code, capsys.readouterr().err, flag, taken)


def test_an_address_of_another_machine(repository):
    done = run(["-m", "ksrv", "serve", repository, "--http", "192.0.2.1:0", "--insecure"])
    assert done.returncode == 1
    assert "setting 'http': 192.0.2.1:0 cannot be listened on: Cannot assign" in done.stderr
