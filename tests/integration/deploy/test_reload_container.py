"""The program of components/reload: secrets are replaced as the kubelet does, ksrv takes them."""

import os
import subprocess
import sys

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import DOUBLE, VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.unit.deploy.packages import DEPLOY

PROGRAM = DEPLOY / "kubernetes/components/reload/reload.py"


def put(folder, number, text):
    """Replace a mounted secret: a new folder, and one link turned over to it."""
    data = folder / f"..data_{number}"
    data.mkdir(parents=True)
    (data / "tokens").write_text(text)
    (folder / "..new").symlink_to(data.name)
    os.replace(folder / "..new", folder / "..data")
    if not (folder / "tokens").is_symlink():
        (folder / "tokens").symlink_to("..data/tokens")


@pytest.fixture
def server(tmp_path):
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    put(tmp_path / "tokens", 1, "first\n")
    # The program knows ksrv by its command line, which a server has that is executed, not forked.
    executed = {"OWN_COMMAND_LINE": "yes"}
    token_file = str(tmp_path / "tokens/tokens")
    with Server(tmp_path / "models", token_file=token_file, environment=executed) as server:
        yield server


# The program looks for ksrv among all processes, as in a separate pod; here other tests have servers
# too, so only this server's processes are shown to it.
WATCH = """
import os, runpy, sys
from pathlib import Path
master, program, folder = sys.argv[1:]
listed = os.listdir
children = Path(f"/proc/{master}/task/{master}/children")
os.listdir = lambda path: [master, *children.read_text().split()] if path == "/proc" else listed(path)
runpy.run_path(program)["main"]([Path(folder)])
"""


def watch(server, folder):
    command = [sys.executable, "-c", WATCH, str(server.pid), str(PROGRAM), str(folder)]
    program = subprocess.Popen(
        command, env=os.environ | {"RELOAD_SECONDS": "0.2"}, stdout=subprocess.PIPE
    )
    assert program.stdout.readline().startswith(b"watching ")
    return program


def accepted(server, token):
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{server.url}/v2", headers=headers, timeout=30).status_code == 200


def test_a_replaced_token_is_taken_without_a_restart(server, tmp_path):
    folder = tmp_path / "tokens"
    before = server.pid
    program = watch(server, folder)
    try:
        assert accepted(server, "first")
        put(folder, 2, "second\n")
        wait_until(lambda: accepted(server, "second"), seconds=60)
        wait_until(lambda: not accepted(server, "first"), seconds=60)
        put(folder, 3, "")  # a rotation that went wrong changes nothing
        wait_until(lambda: "the reload is refused" in server.log, seconds=60)
        assert accepted(server, "second")
        put(folder, 4, "third\n")
        wait_until(lambda: accepted(server, "third"), seconds=60)
        assert server.process.poll() is None
        assert server.pid == before
    finally:
        program.terminate()
        program.communicate(timeout=30)
