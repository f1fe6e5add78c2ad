"""Two servers behind a proxy are restarted one after the other, and no call is lost."""

import json
import threading
from collections import Counter

import grpc
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.servers.proxies import KINDS, Backend, free_ports, running
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer
from tests.support.wire.http_reader import double_body

pytestmark = pytest.mark.slow

ROUNDS = 2
CLIENTS = 4
VALUES = np.arange(4, dtype=np.float32)
CALL = infer_request("double", ("x", "FP32", [1, 4]), raw=[VALUES.tobytes()])

RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
"""Retries of a gRPC client. nginx does not read gRPC's status, so it repeats no refused call."""


class Traffic:
    """Clients that call through a proxy until they are stopped, and how their calls ended."""

    def __init__(self, proxy, options):
        self._proxy = proxy
        self._options = options
        self._over = threading.Event()
        self.outcomes = Counter()
        clients = [self._rest, self._grpc] * CLIENTS
        self._threads = [threading.Thread(target=client) for client in clients]

    def _rest(self):
        with requests.Session() as session:
            while not self._over.is_set():
                url = f"{self._proxy.rest}/v2/models/double/infer"
                try:
                    answer = session.post(url, data=double_body(), timeout=60)
                    self.outcomes[
                        "REST", answer.status_code, answer.text if not answer.ok else ""
                    ] += 1
                except requests.RequestException as error:
                    self.outcomes["REST", type(error).__name__, str(error)] += 1

    def _grpc(self):
        with grpc.insecure_channel(self._proxy.grpc, options=self._options) as channel:
            infer = stub_infer(channel)
            while not self._over.is_set():
                try:
                    infer(CALL, timeout=60)
                    self.outcomes["gRPC", "OK", ""] += 1
                except grpc.RpcError as error:
                    self.outcomes["gRPC", error.code().name, error.details()] += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()


def start(models, backend):
    server = Server(
        models,
        http=f"127.0.0.1:{backend.http}",
        grpc=f"127.0.0.1:{backend.grpc}",
        drain_delay=2,
        start_timeout=120,
    )
    server.start()
    return server


def answered(server):
    """How many requests of a server's clients the server has answered: the proxy knows that it is back."""
    answer = requests.get(f"{server.url}/v2/models/double/stats", timeout=60).json()
    return answer["model_stats"][0]["inference_stats"]["success"]["count"]


@pytest.mark.parametrize("kind", KINDS)
def test_rolling_restart_behind_a_proxy_loses_no_call(tmp_path, kind):
    models = tmp_path / "models"
    write_double(models)
    ports = free_ports(4)
    backends = [Backend(ports[0], ports[1]), Backend(ports[2], ports[3])]
    options = [("grpc.service_config", json.dumps(RETRIES))] if kind == "nginx" else []
    servers = [start(models, backend) for backend in backends]
    try:
        with running(kind, tmp_path / kind, backends) as proxy, Traffic(proxy, options) as traffic:
            for number in [0, 1] * ROUNDS:
                for server in servers:
                    wait_until(lambda server=server: answered(server) > 200)
                assert servers[number].terminate() == 0
                servers[number] = start(models, backends[number])
            wait_until(lambda: all(answered(server) > 200 for server in servers))
    finally:
        for server in servers:
            server.terminate()
    print(kind, dict(traffic.outcomes))
    assert set(traffic.outcomes) == {("REST", 200, ""), ("gRPC", "OK", "")}
