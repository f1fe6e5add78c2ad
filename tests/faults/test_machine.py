"""Machines that run out of disk, of shared memory or of descriptors, whose clock jumps, and crowds of clients that do nothing."""

import os
import random
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from ksrv.testing import Server
from tests.support.faults.callers import addresses
from tests.support.faults.crowds import Crowd
from tests.support.faults.health import assert_answers_exactly, opened, wait_successes
from tests.support.faults.patterns import write_patterns
from tests.support.faults.storms import Load, all_answered
from tests.support.model_files.onnx_models import write_add_sub
from tests.support.model_files.triton_repository import write_folder
from tests.support.processes import children
from tests.support.wait_until import wait_until

JUMPS = Path(__file__).parent.parent / "support" / "faults" / "clock_jumps.c"
YEAR = 365 * 86_400
ADD_SUB = 'platform: "onnxruntime_onnx" max_batch_size: 8'


class Wrapped(Server):
    """A server that a shell starts."""

    script = 'exec "$@"'

    def command(self, settings_file: Path) -> list[str]:
        return ["sh", "-c", self.script, "sh", *super().command(settings_file)]


class FullLog(Wrapped):
    """Its log is on a full disk."""

    script = 'exec "$@" >/dev/full 2>&1'


class SmallShm(Wrapped):
    """/dev/shm has room for 64 KiB, in a separate mount namespace."""

    script = (
        "exec unshare --map-root-user --mount sh -c "
        '\'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"\' sh "$@"'
    )


class FullTemporary(Wrapped):
    """The disk of temporary files has one page left, in a separate mount namespace. Python would not choose a full disk."""

    script = (
        "exec unshare --map-root-user --mount sh -c "
        '\'mount -t tmpfs -o size=1m none "$TMPDIR" && '
        'head -c 1044480 /dev/zero >"$TMPDIR/full" && exec "$@"\' sh "$@"'
    )


def may_mount() -> bool:
    """Whether the system lets this user mount in a separate namespace."""
    tried = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"],
        capture_output=True,
    )
    return tried.returncode == 0


def test_full_log_disk_fails_no_request(tmp_path: Path, seed: str) -> None:
    with FullLog(write_patterns(tmp_path), access_log=True) as server:
        with Load(addresses(server), seed) as load:
            load.wait_for(10)
        all_answered(load.ledger)
        wait_successes(server, load.ledger)


@pytest.mark.slow
def test_small_dev_shm_fails_no_request(tmp_path: Path, seed: str) -> None:
    if not may_mount():
        pytest.skip("this system lets nobody mount in a separate namespace")
    with SmallShm(write_patterns(tmp_path)) as server:
        with Load(addresses(server), seed) as load:
            load.wait_for(20)
        all_answered(load.ledger)
        wait_successes(server, load.ledger)


@pytest.mark.slow
def test_full_temporary_disk_fails_no_request_and_no_load(tmp_path: Path, seed: str) -> None:
    if not may_mount():
        pytest.skip("this system lets nobody mount in a separate namespace")
    root = write_patterns(tmp_path / "models")
    write_add_sub(write_folder(root, "simple", ADD_SUB) / "1/model.onnx")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with FullTemporary(root, environment={"TMPDIR": str(temporary)}) as server:

        def load(model: str, **parameters: str) -> tuple[int, str]:
            url = f"{server.url}/v2/repository/models/{model}/load"
            answer = requests.post(url, json={"parameters": parameters}, timeout=60)
            return answer.status_code, answer.text

        with Load(addresses(server), seed) as load_of_clients:
            load_of_clients.wait_for(2)
            assert load("separate")[0] == 200
            for _ in range(2):
                status, text = load("simple", config='{"max_batch_size": 3}' + " " * 8192)
                assert status == 200, text
            assert load("simple")[0] == 200
            load_of_clients.wait_for(2)
        all_answered(load_of_clients.ledger)
        assert server.get("/v2/health/ready")[0] == 200


@pytest.mark.slow
def test_clock_jump_ends_no_request(tmp_path: Path, seed: str, choose: random.Random) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed")
    library, ahead = tmp_path / "clock_jumps.so", tmp_path / "ahead"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", JUMPS, "-o", library], check=True)
    ahead.write_bytes(struct.pack("=q", 0))
    environment = {"LD_PRELOAD": str(library), "CLOCK_JUMPS": str(ahead)}
    with Server(write_patterns(tmp_path / "models"), environment=environment) as server:
        with Load(addresses(server), seed) as load:
            for _ in range(8):
                seconds = choose.choice((-3600, 3600, -YEAR, 10 * YEAR, 0, 1, -1))
                with ahead.open("r+b") as file:  # in place: the server has it mapped
                    file.write(struct.pack("=q", seconds))
                load.wait_for(3)
        all_answered(load.ledger)
        wait_successes(server, load.ledger)


@contextmanager
def few_descriptors(pid: int, most: int) -> Iterator[None]:
    """Let a process open no descriptor above a number."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_open_connections_are_served_without_descriptors(tmp_path: Path, seed: str) -> None:
    models = ("here", "joined")
    with Server(write_patterns(tmp_path, models)) as server:
        assert_answers_exactly(addresses(server), None, models)
        [worker] = children(server.pid)
        before = opened(server)
        with Load(addresses(server), seed, models=models) as load:
            load.wait_for(3)
            first = len(os.listdir(f"/proc/{worker}/fd"))
            with few_descriptors(worker, first + 8), ExitStack() as crowd:
                for address in {server.http, server.grpc}:
                    host, _, port = address.rpartition(":")
                    for _ in range(40):
                        crowd.enter_context(socket.create_connection((host, int(port)), 60))
                load.wait_for(10)
            load.wait_for(3)
        all_answered(load.ledger)
        wait_until(lambda: opened(server) <= before + 24)
        assert_answers_exactly(addresses(server), None, models)


@pytest.mark.parametrize("count", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_many_slow_clients_delay_no_other(
    tmp_path: Path, seed: str, choose: random.Random, count: int
) -> None:
    with (
        Server(write_patterns(tmp_path), max_connections=8192) as server,
        Crowd(server.http, choose, count) as crowd,
    ):
        with Load(addresses(server), seed) as load:
            for _ in range(4):
                crowd.go_on(count // 4)
                load.wait_for(3)
        all_answered(load.ledger)
        wait_successes(server, load.ledger)
