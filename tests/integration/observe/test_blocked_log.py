"""A log that nobody reads keeps no request waiting, and no signal."""

import fcntl
import os

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.http_reader import double_body

FAILS = """
from ksrv import BaseHandler


class Fails(BaseHandler):
    def inference(self, x):
        raise RuntimeError("no " * 300)
"""
SMALLEST_PIPE = 4096


class Unread(Server):
    """A server whose output is written to a pipe that is open and not read."""

    def __init__(self, paths, pipe, **settings):
        super().__init__(paths, **settings)
        self._pipe = pipe

    def command(self, settings_file):
        into_the_pipe = f'exec "$@" > {self._pipe} 2>&1'
        return ["sh", "-c", into_the_pipe, "sh", *super().command(settings_file)]


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    yield tmp_path / "log"
    os.close(reader)


def infer(server, model):
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, data=double_body(), timeout=30).status_code


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_requests_and_the_end_do_not_wait_for_the_reader_of_the_log(tmp_path, pipe, log_format):
    models = tmp_path / "models"
    write_model(models, "inline", FAILS, VECTOR + "warmup: false\n")
    write_model(models, "isolated", FAILS, VECTOR + "warmup: false\nexecutor: process\n")
    with Unread(models, pipe, grpc="off", access_log=True, log_format=log_format) as server:
        assert [infer(server, model) for model in ("inline", "isolated") * 5] == [500] * 10


def test_lines_that_the_reader_did_not_take_are_counted(tmp_path, pipe):
    models = tmp_path / "models"
    write_model(models, "fails", FAILS.replace("300", "10_000"), VECTOR + "warmup: false\n")

    def lost(server):
        for _ in range(10):
            infer(server, "fails")
        page = requests.get(f"{server.url}/metrics", timeout=30).text
        [line] = [one for one in page.splitlines() if one.startswith("ksrv_lost_log_lines_total")]
        return float(line.split()[-1])

    with Unread(models, pipe, grpc="off") as server:
        wait_until(lambda: lost(server))
