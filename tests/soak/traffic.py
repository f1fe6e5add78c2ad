"""Traffic of a soak: each function makes a step, which a separate thread repeats.

A step raises AssertionError if the server broke a promise. Calls over all protocols, with and without faults, are in
`tests/support/faults`.
"""

import itertools
import mmap
import os
import random
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import requests

from ksrv.client import Client, ClientError, StatusError
from ksrv.testing import Server
from tests.support.faults.callers import CALLERS
from tests.support.faults.crowds import Crowd
from tests.support.faults.health import descendants
from tests.support.faults.patterns import MODELS, write_patterns
from tests.support.faults.proxy import KINDS
from tests.support.faults.storms import Ledger, Record, judge, judge_answers, storm
from tests.support.images.files import png_claiming
from tests.support.models import MEAN, write_double, write_model
from tests.support.processes import children
from tests.support.sequences import SHAPES, SUMS
from tests.support.streams import write_words
from tests.support.wire.http_probes import GOOD, PROBES, answers
from tests.support.wire.http_reader import open_connection, read_all

# A journal of all rows would fill the disk within a night.
PLAIN = """
from ksrv import BaseHandler


class Plain(BaseHandler):
    def inference(self, x):
        return {"y": ANSWER}
"""

IMAGES = """
inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]
batching: {max_batch_size: 8, max_delay_ms: 1}
warmup: false
"""

Step = Callable[[], object]


def write_models(root: Path, *, sequences: bool) -> Path:
    """Write the models of a server.

    Args:
        root: The repository.
        sequences: Whether one of them has sequences, which several workers cannot serve.
    """
    write_patterns(root, handler=PLAIN)
    write_model(root, "mean", MEAN, IMAGES)
    write_words(root)
    write_double(root)
    if sequences:
        write_model(root, "sums", SUMS, SHAPES + "sequences: {}\nwarmup: false\n")
    return root


@dataclass
class Target:
    """A server and what its clients know of it.

    Attributes:
        server: The server.
        trusted: Its certificate; None if it speaks cleartext.
        control: Its control token; "" without one.
    """

    server: Server
    trusted: Path | None = None
    control: str = ""

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each protocol."""
        return {
            protocol: self.server.grpc if protocol == "grpc" else self.server.http
            for protocol in CALLERS
        }

    def client(self, protocol: str) -> Client:
        """Return a client of ksrv's library, which repeats nothing."""
        scheme = protocol if self.trusted is None else f"{protocol}s"
        address = self.server.grpc if protocol == "grpc" else self.server.http
        authority = None if self.trusted is None else str(self.trusted)
        return Client(f"{scheme}://{address}", ca=authority, timeout=60, retries=0)

    def post(self, path: str, document: Any) -> requests.Response:
        """Post JSON over a new connection."""
        trusted = True if self.trusted is None else str(self.trusted)
        headers = {"Authorization": f"Bearer {self.control}"} if self.control else {}
        return requests.post(
            f"{self.server.url}{path}", json=document, headers=headers, timeout=60, verify=trusted
        )


@dataclass
class Tally(Ledger):
    """A ledger that judges calls when they end, and keeps numbers alone.

    Attributes:
        seconds: How long the calls of each client have taken since that was last asked for.
        counts: How often each kind of outcome was.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, records: list[Record]) -> None:
        """Take calls that have ended; without faults between, each must have its answer."""
        judge_answers(Ledger(records))
        for record in records:
            assert record.outcome.kind == "answered", record
            self.counts[record.outcome.kind] += 1
            self.seconds.setdefault(record.client, []).append(record.seconds)


@dataclass
class Tallied:
    """The steps that were made.

    Attributes:
        steps: The number of steps of each kind.
        failures: The failures, each after its kind.
    """

    steps: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def repeat(self, name: str, step: Step, pause: float, over: threading.Event) -> None:
        """Make a step again and again until it is over.

        Args:
            name: Its name.
            step: The step.
            pause: Seconds after each step.
            over: Set to end the steps.
        """
        while not over.wait(pause):
            try:
                step()
            except Exception as error:  # the run continues, and fails at its end
                self.failures.append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
                over.wait(1)
            self.steps[name] += 1


def pictures(target: Target, choose: random.Random) -> Step:
    """Pictures of one colour each, as JPEG and PNG, alone and several in a request, with broken pictures between."""
    clients = itertools.cycle([target.client("http"), target.client("grpc")])
    broken = [png_claiming(60_000, 60_000), b"\xff\xd8\xff\xe0 no picture", b""]

    def step() -> None:
        client = next(clients)
        if choose.random() < 0.1:
            refused(lambda: client.infer("mean", {"image": [choose.choice(broken)]}))
            return
        colours = [[choose.randrange(256) for _ in range(3)] for _ in range(choose.randint(1, 4))]
        files, expected = [], []
        for colour in colours:
            size = choose.randint(8, 300), choose.randint(8, 300), 3
            made = cv2.imencode(choose.choice((".jpg", ".png")), np.full(size, colour, np.uint8))[1]
            files.append(made.tobytes())
            shown = cv2.imdecode(made, cv2.IMREAD_COLOR)
            assert shown is not None
            expected.append(shown.mean((0, 1)))
        found = client.infer("mean", {"image": files})["mean"]
        assert np.allclose(found, expected, atol=2), (colours, found)

    return step


def refused(call: Step) -> None:
    """Fail unless a call is refused as the client's mistake."""
    status = 200
    try:
        call()
    except StatusError as error:
        status = error.status
    assert 400 <= status < 500, status


def streams(target: Target, choose: random.Random) -> Step:
    """Answers in parts, read to their end or left before it; handlers that refuse after some words."""
    clients = itertools.cycle([target.client("http"), target.client("grpc")])

    def step() -> None:
        words = [uuid.UUID(int=choose.getrandbits(128)).hex for _ in range(choose.randint(1, 40))]
        leaves, fails = choose.random() < 0.2, choose.random() < 0.1
        text = " ".join([*words, *(["refuse"] if fails else [])])
        found = []
        with closing(next(clients).generate("words", text)) as parts:
            try:
                for part in parts:
                    found.append(part.strip())
                    if leaves and len(found) == 3:
                        break
            except ClientError:
                if not fails:
                    raise
        assert found == (words[:3] if leaves and len(found) == 3 else words), (words, found)

    return step


def sequences(target: Target, choose: random.Random) -> Step:
    """Sequences of a few requests, several open at a time, each with a separate sum."""
    clients = [target.client("http"), target.client("grpc")]
    sums: dict[int, float] = {}

    def step() -> None:
        number = choose.choice([*sums, choose.getrandbits(40) + 1] if len(sums) < 8 else [*sums])
        start, end = number not in sums, choose.random() < 0.2
        value = float(choose.randrange(1, 1000))
        parameters = {
            "sequence_id": number,
            "sequence_start": start,
            "sequence_end": end,
        }
        sums[number] = sums.get(number, 0.0) + value
        row = np.array([[value, 0, 0, 0]], np.float32)
        found = choose.choice(clients).infer("sums", {"x": row}, parameters=parameters)["y"]
        assert found[0, 0] == sums[number], (number, sums[number], found)
        if end:
            del sums[number]

    return step


def shared_memory(target: Target, choose: random.Random) -> Step:
    """Regions that are registered, read, written and given back; now and then one that is too small."""

    def step() -> None:
        key = f"ksrv_soak_{uuid.uuid4().hex}"
        path = Path("/dev/shm") / key
        path.write_bytes(bytes(4096))
        region = f"/v2/systemsharedmemory/region/{key}"
        try:
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
                row = np.array([[choose.random() for _ in range(4)]], np.float32)
                memory[64:80] = row.tobytes()
                made = target.post(f"{region}/register", {"key": key, "byte_size": 4096})
                assert made.status_code == 200, made.text
                answer = target.post("/v2/models/double/infer", in_region(key, 64))
                assert answer.status_code == 200, answer.text
                found = np.frombuffer(memory[128:144], np.float32)
                assert np.array_equal(found, row[0] * 2), (row, found)
                answer = target.post("/v2/models/double/infer", in_region(key, 4090))
                assert answer.status_code == 400, answer.text
        finally:
            gone = target.post(f"{region}/unregister", {})
            path.unlink()
        assert gone.status_code == 200, gone.text

    return step


def in_region(name: str, offset: int) -> dict[str, Any]:
    """Return a request whose input and output are in a region."""

    def at(offset: int) -> dict[str, Any]:
        return {
            "shared_memory_region": name,
            "shared_memory_offset": offset,
            "shared_memory_byte_size": 16,
        }

    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": at(offset)}],
        "outputs": [{"name": "y", "parameters": at(128)}],
    }


def odd_messages(target: Target, choose: random.Random) -> Step:
    """Messages that HTTP/1.1 forbids, and odd forms that it allows, with the statuses that RFC 9112 asks for."""
    names = list(PROBES)

    def step() -> None:
        name = choose.choice(names)
        with open_connection(target.server.http, 60) as client:
            client.sendall(PROBES[name].message + GOOD)
            client.shutdown(socket.SHUT_WR)
            statuses, _, _ = answers(read_all(client))
        assert statuses == PROBES[name].statuses, (name, statuses)

    return step


BAD = [
    {},
    {"inputs": []},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3]}]},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, -4], "data": [1, 2, 3, 4]}]},
    {"inputs": [{"name": "x", "datatype": "FP99", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 40, 4], "data": []}]},
    {"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ["a"] * 4}]},
    [[[[]]]],
    "x" * 100_000,
]
"""Documents that are no request to the model `double`."""


def odd_requests(target: Target, choose: random.Random) -> Step:
    """Documents that are no request, and names that nothing has: refused by a sentence."""

    def step() -> None:
        # Names that differ each time must leave nothing behind.
        unknown = f"/v2/models/{uuid.UUID(int=choose.getrandbits(128))}/infer"
        if choose.random() < 0.3:
            answer = target.post(unknown, BAD[2])
        else:
            bad = choose.choice(BAD)
            if isinstance(bad, dict) and bad.get("inputs"):
                bad = bad | {"id": str(choose.getrandbits(64))}
            answer = target.post("/v2/models/double/infer", bad)
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"], answer.text

    return step


def slow_clients(crowd: Crowd, count: int) -> Step:
    """Clients that hold connections and go on by single bytes."""

    def step() -> None:
        crowd.renew()
        crowd.go_on(count)

    return step


def reloads(target: Target, choose: random.Random) -> Step:
    """A model is loaded anew, while it is called."""

    def step() -> None:
        model = choose.choice((*MODELS, "mean", "words", "double"))
        answer = target.post(f"/v2/repository/models/{model}/load", {})
        assert answer.status_code == 200, answer.text

    return step


def killed_handlers(target: Target, choose: random.Random) -> Step:
    """A handler process is killed while it is called: another process runs its batch again."""

    def step() -> None:
        worker = choose.choice(children(target.server.pid))
        handlers = [pid for pid in descendants(worker) if pid != worker]
        if handlers:
            os.kill(choose.choice(handlers), signal.SIGKILL)

    return step


def faulty_network(target: Target, seed: str) -> Step:
    """Calls through a network that delays, cuts, resets, half-closes and changes bytes; see `storm`."""
    turns = itertools.count()
    kinds = tuple(kind for kind in KINDS if kind != "corrupt")

    def step() -> None:
        turn = next(turns)
        protocol = list(CALLERS)[turn % len(CALLERS)]
        ledger = storm(
            target.addresses[protocol], protocol, f"{seed}:{turn}", trusted=target.trusted,
            clients=2, rounds=4, kinds=kinds,
        )  # fmt: skip
        judge(ledger, trusted=target.trusted is not None)

    return step
