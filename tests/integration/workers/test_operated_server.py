"""A day of an operator: every change that production.md names, to one server that is never without load.

The server has the settings of deploy/systemd, two workers, TLS, tokens and models here and in processes. Clients
of five kinds call it without a pause, and check every answer.
"""

import collections
import contextlib
import json
import os
import random
import shutil
import signal
import ssl
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import yaml

from ksrv.testing import Server
from tests.integration.workers.test_soak_server import descendants
from tests.support.certificates import self_signed
from tests.support.models import VECTOR, write_model
from tests.support.streams import pieces, text_request, write_words
from tests.support.wait_until import wait_until
from tests.unit.deploy.packages import DEPLOY

SCALED = """
from ksrv import BaseHandler


class Scaled(BaseHandler):
    def inference(self, x):
        return {{"y": x * {factor}}}
"""
NAMES = ("here", "apart")
ROW = [1.0, 2.0, 3.0, 4.0]
QUIET = 20
"""Requests that every client makes between two changes."""


def write_store(root, factor):
    """A repository whose models multiply by `factor`, and one that streams."""
    for name, executor in zip(NAMES, ("inline", "process"), strict=True):
        more = f"executor: {executor}\ninstances: 2\nbatching: {{max_batch_size: 4, max_delay_ms: 1}}\n"
        write_model(root, name, SCALED.format(factor=factor), VECTOR + more)
    write_words(root)
    return root


def switch(link, target):
    """Let a symbolic link name another folder, in one step."""
    new = link.with_name(".next")
    new.symlink_to(target)
    os.replace(new, link)


class Access:
    """The clients' token, and the certificates that they trust.

    Args:
        token: The token.
        trusted: A file of certificates.
    """

    def __init__(self, token, trusted):
        self.token = token
        self.trusted = trusted

    @property
    def header(self):
        return {"Authorization": f"Bearer {self.token}"}


def document():
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}


def check(values):
    """Fail unless an answer is that of the models' first or second version."""
    assert list(values) in ([2.0, 4.0, 6.0, 8.0], [3.0, 6.0, 9.0, 12.0]), values


def over_one_connection(server, access):
    """Requests over a connection that stays as long as the server keeps it."""
    context = ssl.create_default_context(cafile=access.trusted)
    client = httpx.Client(base_url=server.url, verify=context, timeout=60)

    def call(name):
        answer = client.post(f"/v2/models/{name}/infer", json=document(), headers=access.header)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        check(answer.json()["outputs"][0]["data"])

    return call, client.close


def over_new_connections(server, access):
    url = f"{server.url}/v2/models"

    def call(name):
        answer = requests.post(
            f"{url}/{name}/infer", json=document(), headers=access.header, verify=access.trusted, timeout=60
        )  # fmt: skip
        assert answer.status_code == 200, (answer.status_code, answer.text)
        check(answer.json()["outputs"][0]["data"])

    return call, lambda: None


def over_grpc(server, access):
    client = triton.InferenceServerClient(server.grpc, ssl=True, root_certificates=access.trusted)
    x = triton.InferInput("x", [1, 4], "FP32")
    x.set_data_from_numpy(np.array([ROW], np.float32))

    def call(name):
        headers = {"authorization": f"Bearer {access.token}"}
        answer = client.infer(name, [x], headers=headers, client_timeout=60)
        check(answer.as_numpy("y")[0].tolist())

    return call, client.close


def over_event_streams(server, access):
    """Streams of three pieces, each on a separate connection."""
    context = ssl.create_default_context(cafile=access.trusted)
    client = httpx.Client(base_url=server.url, verify=context, timeout=60)
    request = text_request("a b c", pause=0.02)

    def call(_):
        headers = access.header | {"Accept": "text/event-stream"}
        found = []
        path = "/v2/models/words/infer"
        with client.stream("POST", path, json=request, headers=headers) as answer:
            assert answer.status_code == 200, answer.status_code
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
        assert pieces(found) == ["a ", "b ", "c "], found

    return call, client.close


def probes(server, access):
    """The requests of a kubelet, a balancer and Prometheus."""
    url = server.url

    def call(_):
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            answer = requests.get(
                url + path, headers=access.header, verify=access.trusted, timeout=60
            )
            assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])

    return call, lambda: None


KINDS = (
    over_one_connection, over_new_connections, over_grpc, over_event_streams, probes
)  # fmt: skip


class Clients:
    """Clients of every kind, each on a separate thread, which call until they are stopped.

    Args:
        server: The server.
        access: Their token and trusted certificates.

    Attributes:
        answered: How many calls each kind has had answered.
        failed: The calls that failed: the step, the kind and the error.
        step: The operator's current step.
    """

    def __init__(self, server, access):
        self.answered = collections.Counter()
        self.failed = []
        self.step = ""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(kind.__name__, *kind(server, access)))
            for kind in KINDS
        ]

    def _call(self, kind, call, close):
        choose = random.Random(kind)
        while not self._stop.is_set():
            try:
                call(choose.choice(NAMES))
                self.answered[kind] += 1
            except Exception as error:  # whatever a client may meet is a failed request
                self.failed.append((self.step, kind, f"{type(error).__name__}: {error}"))
                self._stop.wait(0.05)
        close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self):
        """Wait until every client has been answered some times more."""
        wanted = {kind.__name__: self.answered[kind.__name__] + QUIET for kind in KINDS}
        wait_until(
            lambda: all(self.answered[kind] >= count for kind, count in wanted.items()),
            tell=lambda: f"{self.answered} {self.failed[:10]}",
        )

    @contextlib.contextmanager
    def during(self, step, may_lose=0):
        """Do a step of the operator; no request fails from its beginning to its end.

        Args:
            step: Its name.
            may_lose: How many requests may end with their connection, at most; none with an answer.
        """
        before = len(self.failed)
        self.step = step
        self.wait()
        yield
        self.wait()
        failed = self.failed[before:]
        assert len(failed) <= may_lose, failed
        assert not any("AssertionError" in error for *_, error in failed), failed


class Operated(Server):
    """A server of deploy/systemd's settings file, whose files an operator replaces.

    Args:
        folder: The folder of its files.
    """

    def __init__(self, folder):
        self.folder = folder
        self.certificates = [self_signed(folder / "new", name) for name in ("first", "second")]
        trusted = folder / "trusted.pem"
        trusted.write_bytes(b"".join(cert.read_bytes() for _, cert in self.certificates))
        self.trusted = str(trusted)
        for number in (1, 2):
            write_store(folder / f"store-{number}", number + 1)
        self.store = folder / "store"
        switch(self.store, "store-1")
        self.put_tokens("old-token")
        self.put("control-tokens", "control-token")
        self.put_certificate(0)
        text = (DEPLOY / "systemd/ksrv.yaml").read_text().replace("/etc/ksrv/", f"{folder}/")
        settings = yaml.safe_load(text.replace("/srv/models", str(self.store)))
        settings |= {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "workers": 2}
        settings |= {"poll_interval": 0.5, "model_control": "poll", "drain_delay": 1}
        super().__init__(settings.pop("models"), **settings)

    def put(self, name, text):
        new = self.folder / f"{name}.new"
        new.write_text(text)
        new.chmod(0o600)
        os.replace(new, self.folder / name)

    def put_tokens(self, *tokens):
        self.put("tokens", "\n".join(tokens) + "\n")

    def put_certificate(self, number):
        (self.folder / "tls").mkdir(exist_ok=True)
        for path, name in zip(self.certificates[number], ("key.pem", "cert.pem"), strict=True):
            shutil.copy(path, self.folder / "tls" / "next")
            os.replace(self.folder / "tls" / "next", self.folder / "tls" / name)

    def workers(self):
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return set(map(int, children.read_text().split()))

    def handler_processes(self):
        return set(descendants(self.pid)) - self.workers() - {self.pid}

    def ready_count(self):
        return self.log.count("ready: True")

    def send(self, number):
        os.kill(self.pid, number)

    def reload(self):
        """SIGHUP, and wait until the workers of before are gone."""
        old = self.workers()
        self.send(signal.SIGHUP)
        wait_until(lambda: not old & self.workers(), tell=lambda: self.log[-4000:])

    def status(self, token):
        headers = {"Authorization": f"Bearer {token}"}
        return requests.get(
            f"{self.url}/v2/models/here", headers=headers, verify=self.trusted, timeout=60
        ).status_code

    def certificate(self, address):
        host, _, port = address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=60)


def scale(server, number, count):
    server.send(number)
    wait_until(lambda: len(server.workers()) == count, tell=lambda: server.log[-4000:])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_day_of_an_operator_fails_no_request(tmp_path):
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(Operated(tmp_path))
        access = Access("old-token", server.trusted)
        wait_until(lambda: server.ready_count() == 2)
        clients = opened.enter_context(Clients(server, access))

        with clients.during("deployed"):
            assert server.status("a-stranger") == 401

        with clients.during("a model is replaced by a link to another store"):
            switch(server.store, "store-2")
            for name in NAMES:
                wait_until(lambda: factors(server, access, name) == {3.0})  # noqa: B023

        with clients.during("a token is rotated"):
            server.put_tokens("old-token", "new-token")
            server.reload()
            access.token = "new-token"
            clients.wait()
            server.put_tokens("new-token")
            server.reload()
            assert (server.status("old-token"), server.status("new-token")) == (401, 200)

        with clients.during("a certificate is rotated"):
            server.put_certificate(1)
            server.reload()
            (_, cert), _ = reversed(server.certificates)
            for address in (server.http, server.grpc):
                assert server.certificate(address).split() == cert.read_text().split()

        with clients.during("a rotation goes wrong"):
            server.put_tokens()
            workers = server.workers()
            server.send(signal.SIGHUP)
            wait_until(lambda: "the reload is refused" in server.log)
            assert server.workers() == workers
            server.put_tokens("new-token")

        with clients.during("a handler process is killed"):
            before = server.handler_processes()
            os.kill(min(before), signal.SIGKILL)
            wait_until(lambda: server.handler_processes() - before)

        with clients.during("a worker is killed", may_lose=len(KINDS)):
            before = server.ready_count()
            os.kill(min(server.workers()), signal.SIGKILL)
            wait_until(lambda: server.ready_count() > before, tell=lambda: server.log[-4000:])

        with clients.during("workers are added and taken away"):
            scale(server, signal.SIGTTIN, 3)
            wait_until(lambda: server.ready_count() > before + 1, tell=lambda: server.log[-4000:])
            scale(server, signal.SIGTTOU, 2)

        with clients.during("the program is replaced"):
            before, workers = server.ready_count(), server.workers()
            server.send(signal.SIGUSR2)
            wait_until(lambda: server.ready_count() >= before + 2, tell=lambda: server.log[-4000:])
            (new,) = server.workers() - workers
            opened.callback(end, new)
            server.send(signal.SIGTERM)
            server.process.wait(60)

        clients.stop()
        print(f"answered {clients.answered}, lost {clients.failed}")


def end(pid):
    """Stop a master that is no child of this process."""
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def factors(server, access, name):
    """Return the model's factors in some answers."""
    found = set()
    for _ in range(6):
        answer = requests.post(
            f"{server.url}/v2/models/{name}/infer", json=document(), headers=access.header,
            verify=access.trusted, timeout=60,
        )  # fmt: skip
        found.add(answer.json()["outputs"][0]["data"][0])
    return found
