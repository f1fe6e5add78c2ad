"""A handler in the worker that keeps the GIL for ever."""

from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.faults.callers import CALLERS
from tests.support.faults.patterns import HANDLER, Pattern, write_patterns
from tests.support.processes import children
from tests.support.wait_until import wait_until

HANGING = 901
"""The id of the request that hangs; the ids of others are random and large."""


@pytest.mark.slow
def test_worker_whose_handler_keeps_the_gil_is_replaced(tmp_path: Path) -> None:
    """Requests that take no Python are answered at their deadlines meanwhile; the others end with the worker."""
    hang = f"        if x.flat[0] >> 20 == {HANGING}:\n            ctypes.PyDLL(None).sleep(3600)\n"
    handler = HANDLER.replace("        os.write", f"{hang}        os.write")
    write_patterns(tmp_path, ("here",), f"import ctypes\n{handler}")
    settings = tmp_path / "here" / "model.yaml"
    text = settings.read_text().replace("timeout_ms: 60000", "timeout_ms: 1500")
    settings.write_text(text.replace("shape: [-1, -1]", "shape: [-1, 4]"))
    with Server(tmp_path, worker_timeout=10) as server:
        [worker] = children(server.pid)
        caller = CALLERS["http1"](server.http, None, 60)
        [outcome] = caller.call([Pattern(HANGING, "here", 1, 4)])
        assert outcome.kind == "refused" and outcome.status == 504, outcome
        assert server.get("/v2/health/live")[0] == 200
        wait_until(lambda: children(server.pid) not in ([worker], []), tell=lambda: server.log)
        wait_until(lambda: server.get("/v2/health/ready")[0] == 200, tell=lambda: server.log)
        assert "WORKER TIMEOUT" in server.log
        [outcome] = caller.call([Pattern(1 << 30, "here", 1, 4)])
        assert outcome.kind == "answered", outcome
        caller.close()
