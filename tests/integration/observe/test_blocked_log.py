"""A log that nobody reads keeps no request waiting, and no signal."""

import fcntl
import os

import pytest
import requests

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until

FAILS = """
from ksrv import BaseHandler


class Fails(BaseHandler):
    def inference(self, x):
        raise RuntimeError("no " * 300)
"""
SMALLEST_PIPE = 4096


class Unread(Server):
    """A server whose output is written to a pipe that is open and not read.

    Args:
        pipe: The path of the pipe.
    """

    def __init__(self, paths, pipe, **settings):
        super().__init__(paths, **settings)
        self._pipe = pipe

    def command(self, settings_file):
        into_the_pipe = f'exec "$@" > {self._pipe} 2>&1'
        return ["sh", "-c", into_the_pipe, "sh", *super().command(settings_file)]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_requests_and_the_end_do_not_wait_for_the_reader_of_the_log(tmp_path, log_format):
    models = tmp_path / "models"
    write_model(models, "inline", FAILS, VECTOR + "warmup: false\n")
    write_model(models, "isolated", FAILS, VECTOR + "warmup: false\nexecutor: process\n")
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    try:
        with Unread(models, pipe, grpc="off", access_log=True, log_format=log_format) as server:
            for model in ("inline", "isolated") * 5:
                url = f"{server.url}/v2/models/{model}/infer"
                assert requests.post(url, json={"inputs": [tensor]}, timeout=30).status_code == 500
    finally:
        os.close(reader)


def test_lines_that_the_reader_did_not_take_are_counted(tmp_path):
    models = tmp_path / "models"
    write_model(models, "fails", FAILS.replace("300", "10_000"), VECTOR + "warmup: false\n")
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}

    def lost(server):
        url = f"{server.url}/v2/models/fails/infer"
        for _ in range(10):
            requests.post(url, json={"inputs": [tensor]}, timeout=30)
        page = requests.get(f"{server.url}/metrics", timeout=30).text
        [line] = [one for one in page.splitlines() if one.startswith("ksrv_lost_log_lines_total")]
        return float(line.split()[-1])

    try:
        with Unread(models, pipe, grpc="off") as server:
            wait_until(lambda: lost(server))
    finally:
        os.close(reader)
