"""A port that another process has: one sentence that says which, and what to do."""

import re
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


def check(done, flag, address):
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line and line]
    (line,) = lines
    assert re.match(rf"Error: setting '{flag}': {address} is in use; ", line)
    assert f"--{flag} HOST:PORT" in line


@pytest.mark.parametrize(("flag", "other"), [("http", "grpc"), ("grpc", "http")])
def test_serve_says_so_at_once(repository, taken, flag, other):
    done = run(["-m", "ksrv", "serve", repository, f"--{flag}", taken, f"--{other}", "127.0.0.1:0"])
    check(done, flag, taken)


def test_one_address_for_both_is_taken_by_the_first(repository, taken):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    check(
        run(["-m", "ksrv", "serve", repository, "--http", address, "--grpc", address]),
        "http",
        address,
    )


@pytest.mark.parametrize(("flag", "other"), [("http", "grpc"), ("grpc", "http")])
def test_the_demo_says_so_too(tmp_path, taken, flag, other):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "digits.pt").touch()  # a model trained earlier is kept
    command = ["examples/digits/demo.py", "--models", tmp_path, f"--{flag}", taken]
    check(run([*command, f"--{other}", "127.0.0.1:0"]), flag, taken)


def test_an_address_of_another_machine(repository):
    done = run(["-m", "ksrv", "serve", repository, "--http", "192.0.2.1:0", "--insecure"])
    assert done.returncode == 1
    assert "setting 'http': 192.0.2.1:0 cannot be listened on: Cannot assign" in done.stderr
