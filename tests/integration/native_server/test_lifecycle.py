"""A worker whose I/O thread is stuck is replaced."""

import pytest

from tests.support.native.gunicorn_server import GunicornServer, infer
from tests.support.processes import children
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long


def test_a_stuck_io_thread_gets_the_worker_replaced(tmp_path):
    """The handler never returns on the HTTP server's thread, so that the heartbeat stops."""
    with GunicornServer(tmp_path, timeout=4, settings={"drain_delay": 0}) as server:
        first = server.counters()["pid"]
        with server.connect() as client:
            client.sendall(infer(16, model="stuck"))
            wait_until(lambda: f"WORKER TIMEOUT (pid:{first})" in server.log)
        wait_until(lambda: first not in children(server.process.pid))
        assert server.counters()["pid"] != first
