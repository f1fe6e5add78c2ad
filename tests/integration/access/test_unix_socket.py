"""A unix socket for HTTP: who on this machine may connect to it."""

import os
import stat
import subprocess
import sys

import pytest

from ksrv.testing import Server
from tests.support.wait_until import wait_until


class MaskedServer(Server):
    """A server whose process begins with another umask.

    Args:
        mask: The mask, as octal digits.
    """

    def __init__(self, *arguments, mask, **settings):
        super().__init__(*arguments, **settings)
        self._mask = mask

    def command(self, settings_file):
        return ["sh", "-c", f'umask {self._mask} && exec "$@"', "sh", *super().command(settings_file)]  # fmt: skip


def mode_of(repository, path, mask):
    with MaskedServer(
        repository, http=f"unix:{path}", grpc="off", wait_ready=False, mask=mask
    ) as running:
        wait_until(lambda: "models loaded" in running.log)
        return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize(("mask", "mode"), [("000", 0o770), ("077", 0o700)])
def test_socket_is_accessible_to_owner_and_group_only(repository, tmp_path, mask, mode):
    assert mode_of(repository, tmp_path / "http.sock", mask) == mode


def test_a_server_of_a_test_is_asked_over_it(repository, tmp_path):
    path = tmp_path / "http.sock"
    with Server(repository, http=f"unix:{path}", grpc="off") as running:
        assert running.http == f"unix:{path}"
        assert running.get("/v2/health/ready")[0] == 200


def test_socket_under_a_separately_started_gunicorn(repository, tmp_path):
    path = tmp_path / "http.sock"
    command = [sys.executable, "-m", "gunicorn", "-c", "python:ksrv.server.gunicorn"]
    log = (tmp_path / "log").open("wb")
    with subprocess.Popen(
        [*command, "--bind", f"unix:{path}", "--umask", "0"],
        env=os.environ | {"KSRV_MODELS": str(repository), "KSRV_GRPC": "off"},
        stdout=log,
        stderr=log,
    ) as process:
        wait_until(path.exists)
        mode = stat.S_IMODE(os.stat(path).st_mode)
        process.terminate()
        process.wait(60)
    assert mode & stat.S_IWOTH == 0
