"""The counters of a server's workers add up exactly, over HTTP and gRPC, also behind reloads and kills."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import requests

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.processes import children
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer
from tests.support.wire.http_reader import (
    double_body,
    infer_message,
    open_connection,
    read_message,
)

CLIENTS = 8
OVER_HTTP = 8_000
OVER_GRPC = 2_000
FAILED = 400


def ask_http(server, count):
    """Send requests; every twentieth names no input of the model."""
    wrong = double_body().replace(b'"x"', b'"z"')
    with open_connection(server.http, 60) as connection:
        for number in range(count):
            refused = number % 20 == 0
            connection.sendall(infer_message("double", wrong if refused else None))
            head, _, _ = read_message(connection)
            assert head.startswith(b"HTTP/1.1 400 " if refused else b"HTTP/1.1 200 ")


def ask_grpc(server, count):
    request = infer_request("double", ("x", "FP32", [1, 4]), raw=[bytes(16)])
    with grpc.insecure_channel(server.grpc) as channel:
        infer = stub_infer(channel)
        for _ in range(count):
            infer(request, timeout=60)


def ask_all(server):
    """Send all requests in parallel, on separate connections."""
    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        calls = [
            pool.submit(ask, server, total // CLIENTS)
            for ask, total in ((ask_http, OVER_HTTP), (ask_grpc, OVER_GRPC))
            for _ in range(CLIENTS)
        ]
    for call in calls:
        call.result()


def counted(server):
    """The successes, the invalid requests and the sum of the batch sizes on the page."""
    text = requests.get(f"{server.url}/metrics", timeout=60).text

    def value(pattern):
        found = re.search(rf"^{pattern} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    labels = 'model="double",outcome="{}",version=""'
    return (
        value(r"ksrv_requests_total\{" + labels.format("success") + r"\}"),
        value(r"ksrv_requests_total\{" + labels.format("invalid") + r"\}"),
        value(r'ksrv_batch_size_sum\{model="double",version=""\}'),
    )


def wait_for(server, expected):
    """Wait until every worker reports the values: each learns of the others' last second only when that is over."""
    in_turn = 0

    def agree():
        nonlocal in_turn
        in_turn = in_turn + 1 if counted(server) == expected else 0
        return in_turn == 20

    wait_until(agree, tell=lambda: f"{counted(server)} and not {expected}")


def test_ten_thousand_requests_to_two_workers_one_of_which_is_killed_then(tmp_path):
    write_double(tmp_path)
    with Server(tmp_path, workers=2) as server:
        wait_until(lambda: server.log.count("ready: True") == 2)
        before = counted(server)
        ask_all(server)
        good, bad = OVER_HTTP + OVER_GRPC - FAILED, FAILED
        expected = (before[0] + good, before[1] + bad, before[2] + good)
        wait_for(server, expected)
        victim = children(server.pid)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: server.log.count("ready: True") == 3)
        wait_until(lambda: victim not in children(server.pid))
        wait_for(server, expected)
        ask_all(server)
        wait_for(server, (expected[0] + good, expected[1] + bad, expected[2] + good))


def test_a_lone_worker_that_is_replaced_or_killed_leaves_its_counts(tmp_path):
    write_double(tmp_path)
    with Server(tmp_path) as server:
        before = counted(server)
        ask_grpc(server, 100)
        expected = (before[0] + 100, before[1], before[2] + 100)
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: server.log.count("ready: True") == 2)
        wait_until(lambda: len(children(server.pid)) == 1)
        wait_for(server, expected)  # which shows them, so that they stay
        [victim] = children(server.pid)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: server.log.count("ready: True") == 3)
        wait_for(server, expected)
