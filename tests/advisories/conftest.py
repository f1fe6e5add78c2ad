"""Real servers for the attacks, and the check that an attack has harmed neither them nor other clients."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ksrv.testing import Server
from tests.support.models import write_all, write_mean, write_model, write_text
from tests.support.processes import children
from tests.support.wire.http_reader import double_body, infer_message, open_connection, read_answer

CANARY = "another-clients-secret"
LIMITS = {"body": "32M", "json": "4M"}
PATIENT: dict[str, Any] = {"keepalive": 3600, "workers": 2}
"""A busy machine does not end the connections of other clients."""
GROWTH_BYTES = 96 << 20
"""The most that the workers' memory may grow in an attack: each attack sends up to 16 MiB, and one inflates to 1 GiB."""
CPU_S = 20
"""The most CPU time of an attack, far above the need of any. Attacks of quadratic time need hours."""
LOG_BYTES = 1 << 20

SHAPE = """
import numpy as np
from ksrv import BaseHandler


class Shape(BaseHandler):
    def inference(self, x):
        return {"shape": np.full((len(x), 1), x.shape[1], np.int64)}
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    write_all(root)
    write_mean(root)
    write_text(root)
    yaml = (
        "inputs: [{name: x, datatype: UINT8, shape: [-1, -1, -1]}]\n"
        "outputs: [{name: shape, datatype: INT64, shape: [-1, 1]}]\n"
        "cache: {entries: 10, bytes: 1000000, ttl_s: 600}\n"
    )
    write_model(root, "cached", SHAPE, yaml)
    return root


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[Server]:
    """A server of two workers."""
    with Server(repository, limits=LIMITS, torchserve_api=True, **PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def stock(repository: Path) -> Iterator[Server]:
    """The same by a stock worker class of gunicorn, whose parser reads the heads."""
    with Server(
        repository, limits=LIMITS, worker_class="gthread", grpc="off", **PATIENT
    ) as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Server]:
    """A server whose callers need tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "tokens").write_text("a-users-token\n")
    (folder / "control").write_text("the-operators-token\n")
    with Server(
        repository,
        **PATIENT,
        torchserve_api=True,
        log_level="debug",
        token_file=str(folder / "tokens"),
        control_token_file=str(folder / "control"),
    ) as running:
        yield running


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def _cpu_seconds(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    ticks = sum(int(one[11]) + int(one[12]) for one in fields)
    return float(ticks / os.sysconf("SC_CLK_TCK"))


@contextlib.contextmanager
def unharmed(server: Server, token: str = "") -> Iterator[list[Any]]:
    """Check that a server is as before an attack, and that the attacker has got no bytes of another client.

    Args:
        server: The attacked server.
        token: A token for the other clients.

    Yields:
        A list for what the attacker receives.
    """
    fields = [f"Authorization: Bearer {token}"] if token else []
    workers = children(server.process.pid)
    answers: list[Any] = []
    with open_connection(server.http) as bystander:

        def ask(values: tuple[float, ...]) -> None:
            bystander.sendall(infer_message("double", double_body(values), *fields))
            answer = read_answer(bystander)
            assert answer.status == 200, answer
            assert str([2 * value for value in values])[1:-1].encode().replace(b" ", b"") in (
                answer.body.replace(b" ", b"")
            )

        # The server's blocks of memory have had the other client's text, when the attacker gets them.
        text = (CANARY * 4000).encode()
        secret = (
            b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["%s"]}]}' % text
        )
        bystander.sendall(infer_message("text", secret, *fields))
        assert read_answer(bystander).status == 200
        ask((1.5, 2.5, 3.5, 4.5))
        for pid in workers:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins again
        logged = len(server.log)
        before = sum(_memory(pid, "VmRSS") for pid in workers)
        cpu = _cpu_seconds(workers)
        yield answers
        ask((5.5, 6.5, 7.5, 8.5))
        with open_connection(server.http) as newcomer:
            newcomer.sendall(infer_message("double", None, *fields))
            assert read_answer(newcomer).status == 200
    assert children(server.process.pid) == workers, "a worker has ended"
    grown = sum(_memory(pid, "VmHWM") for pid in workers) - before
    assert grown < GROWTH_BYTES, f"the workers took {grown >> 20} MiB more"
    assert _cpu_seconds(workers) - cpu < CPU_S
    assert len(server.log) - logged < LOG_BYTES
    assert CANARY not in str(answers)
    assert "Traceback" not in server.log, server.log[-3000:]
