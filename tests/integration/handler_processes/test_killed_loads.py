"""Handler processes that are killed while they load: tried again, with a bound."""

import os
import signal

import pytest

from ksrv.testing import Server
from tests.support.models import VECTOR, write_model
from tests.support.processes import children
from tests.support.wait_until import wait_until

HANDLER = """
import os, signal
from pathlib import Path
from ksrv import BaseHandler

class Killed(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        kills = Path(__file__).with_name("kills.txt")
        left = int(kills.read_text())
        if left:
            kills.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)

    def inference(self, x):
        return {"y": x * 2}
"""
YAML = VECTOR + "executor: process\nbatching: {max_batch_size: 4, max_delay_ms: 0}\n"


def test_a_reload_survives_a_process_that_is_killed_while_it_loads(tmp_path):
    """The model is loaded again, the new worker serves, and the old worker leaves."""
    model = write_model(tmp_path, "m", HANDLER, YAML)
    (model / "kills.txt").write_text("0")
    with Server(tmp_path) as server:
        before = set(children(server.pid))
        (model / "kills.txt").write_text("2")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: before.isdisjoint(children(server.pid) or before), 60)
        assert server.get("/v2/models/m/ready")[0] == 200
        assert server.log.count("it is loaded once more") == 2


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSEGV"])
def test_the_tries_have_a_bound(tmp_path, signal_name):
    """A process that is killed is tried three times, and a process that crashes only once."""
    text = HANDLER.replace("SIGKILL", signal_name)
    model = write_model(tmp_path, "m", text, YAML)
    (model / "kills.txt").write_text("9")
    with Server(tmp_path, wait_ready=False) as server:
        wait_until(lambda: "the model m version -: " in server.log, 60)
        assert server.get("/v2/models/m/ready")[0] == 503
        assert signal_name in server.log
    assert (model / "kills.txt").read_text() == ("6" if signal_name == "SIGKILL" else "8")
