"""A process ends cleanly while native threads are in Python.

The end is prolonged by an object with a slow finalizer, as large libraries have.
"""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SLOW_END = """
import socket, threading, time

entered = threading.Event()

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

slow = Slow()

def hang(*_):
    entered.set()
    while True:
        time.sleep(0.001)  # asks for the GIL again and again
"""

POOL = """
from ksrv._native.images.decode_pool import DecodePool

pool = DecodePool(2)
threading.Thread(target=pool.run, args=(hang, 2, 2), daemon=True).start()
entered.wait()
"""

HTTP_SERVER = """
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.server import HttpServer, PREPARED_ANSWERS_NEEDED
from ksrv._native.http.request_head import HeadRules
from ksrv.server.settings import ServerSettings
from tests.support.wire.http_heads import INFER

answers = dict.fromkeys(PREPARED_ANSWERS_NEEDED, (500, b"500 No", b"content-length: 0\\r\\n", b""))
listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
loop = EventLoop()
limits = ConnectionLimits(ServerSettings())
server = HttpServer(loop, HeadRules(body=1 << 20), limits, hang, answers)
server.listen([listener.fileno()])
for index in range(2):
    threading.Thread(target=loop.run, args=(index,), daemon=True).start()
server.accept(True)
client = socket.create_connection(listener.getsockname())
client.sendall(INFER + b"01234")
entered.wait()
"""


@pytest.mark.parametrize("busy", [POOL, HTTP_SERVER], ids=["decode pool", "native"])
def test_a_process_ends_while_its_threads_are_in_python(busy):
    ended = subprocess.run(
        [sys.executable, "-c", SLOW_END + busy],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
