"""Handlers that raise what is no Exception, that hang with and without the GIL, and that run out of memory, under load."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ksrv.testing import Server
from tests.support.faults.callers import CALLERS
from tests.support.faults.health import assert_answers_exactly
from tests.support.faults.patterns import Pattern, write_patterns
from tests.support.faults.storms import Load, judge_answers
from tests.support.processes import children
from tests.support.wait_until import wait_until

KINDS = (
    "SystemExit", "KeyboardInterrupt", "GeneratorExit", "Own", "MemoryError", "CancelledError", "BaseExceptionGroup",
    "StopIteration", "RecursionError",
)  # fmt: skip
STAGES = ("preprocess", "inference", "postprocess")
HANGS = {"asleep": 900, "holding the GIL": 901}
TOO_MUCH = 902
MODELS = ("here", "apart")

# A pattern's id is random and large: small ids ask for a fault.
HANDLER = """
import asyncio
import ctypes
import os
import resource
from pathlib import Path

import numpy as np
from ksrv import BaseHandler


class Own(BaseException):
    pass


def group(text):
    return BaseExceptionGroup(text, [Own(text), SystemExit(3)])


KINDS = [
    SystemExit, KeyboardInterrupt, GeneratorExit, Own, MemoryError, asyncio.CancelledError, group, StopIteration,
    RecursionError,
]


def meet(x, stage):
    asked = int(x.flat[0]) >> 20
    if asked < 90 and divmod(asked, 10)[1] == stage:
        raise KINDS[asked // 10]("odd input")
    if stage == 1 and asked == 900:
        ctypes.CDLL(None).sleep(3600)
    if stage == 1 and asked == 901:
        ctypes.PyDLL(None).sleep(3600)
    if stage == 1 and asked == 902:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            np.ones(1 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Faulty(BaseHandler):
    def preprocess(self, batch):
        meet(batch["x"], 0)
        return batch["x"]

    def inference(self, x):
        meet(x, 1)
        return x

    def postprocess(self, x):
        meet(x, 2)
        return {"y": ANSWER}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_patterns(tmp_path, MODELS, HANDLER)
    settings = tmp_path / "apart" / "model.yaml"
    text = settings.read_text().replace(
        "timeout_ms: 60000", "timeout_ms: 60000\nrun_timeout_ms: 1500\nretry: false"
    )
    # Each request is a batch, so that a fault is one request's.
    settings.write_text(text.replace("batching: {max_batch_size: 4, max_delay_ms: 0}\n", ""))
    with Server(tmp_path) as running:
        yield running


def addresses(server: Server) -> dict[str, str]:
    return {protocol: server.grpc if protocol == "grpc" else server.http for protocol in CALLERS}


def end_healthy(server: Server, load: Load) -> None:
    """Nobody but who asked for a fault has met one."""
    judge_answers(load.ledger)
    others = [one for one in load.ledger.records if one.outcome.kind != "answered"]
    assert not others, others[:5]
    wait_until(lambda: server.get("/v2/health/ready")[0] == 200, tell=lambda: server.log[-3000:])
    assert_answers_exactly(addresses(server), None, MODELS)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_handler_exception_fails_only_its_request(server: Server, seed: str, model: str) -> None:
    with Load(addresses(server), seed, models=MODELS) as load:
        for protocol, address in addresses(server).items():
            caller = CALLERS[protocol](address, None, 60)
            for kind, name in enumerate(KINDS):
                for stage in range(len(STAGES)):
                    [outcome] = caller.call([Pattern(kind * 10 + stage, model, 1, 4)])
                    assert outcome.kind == "refused", (name, STAGES[stage], outcome)
                    assert outcome.status in (500, 13), (name, STAGES[stage], outcome)
                    assert name in outcome.text, (name, STAGES[stage], outcome)
            caller.close()
        load.wait_for(2)
    end_healthy(server, load)


@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_hung_handler_process_is_replaced(server: Server, seed: str, how: str) -> None:
    """Its own request fails; the other instance serves meanwhile."""
    with Load(addresses(server), seed, models=MODELS) as load:
        caller = CALLERS["http1"](server.http, None, 60)
        for _ in range(2):
            [outcome] = caller.call([Pattern(HANGS[how], "apart", 1, 4)])
            assert outcome.kind == "refused" and outcome.status in (500, 504), outcome
        caller.close()
        load.wait_for(2)
    end_healthy(server, load)


@pytest.mark.slow
def test_handler_memory_error_fails_only_its_request(server: Server, seed: str) -> None:
    with Load(addresses(server), seed, models=MODELS) as load:
        caller = CALLERS["http1"](server.http, None, 60)
        for _ in range(4):
            [outcome] = caller.call([Pattern(TOO_MUCH, "apart", 1, 4)])
            assert outcome.kind == "refused" and outcome.status in (500, 503), outcome
            assert "MemoryError" in outcome.text, outcome
        caller.close()
        load.wait_for(2)
    end_healthy(server, load)


@pytest.mark.slow
def test_worker_whose_handler_keeps_the_gil_is_replaced(tmp_path: Path) -> None:
    """Requests that take no Python are answered at their deadlines meanwhile; the others end with the worker."""
    write_patterns(tmp_path, ("here",), HANDLER)
    settings = tmp_path / "here" / "model.yaml"
    text = settings.read_text().replace("timeout_ms: 60000", "timeout_ms: 1500")
    settings.write_text(text.replace("shape: [-1, -1]", "shape: [-1, 4]"))
    with Server(tmp_path, worker_timeout=10) as server:
        [worker] = children(server.pid)
        caller = CALLERS["http1"](server.http, None, 60)
        [outcome] = caller.call([Pattern(HANGS["holding the GIL"], "here", 1, 4)])
        assert outcome.kind == "refused" and outcome.status == 504, outcome
        assert server.get("/v2/health/live")[0] == 200
        caller.close()
        wait_until(lambda: children(server.pid) not in ([worker], []), tell=lambda: server.log)
        wait_until(lambda: server.get("/v2/health/ready")[0] == 200, tell=lambda: server.log)
        assert "WORKER TIMEOUT" in server.log
        caller = CALLERS["http1"](server.http, None, 60)
        asked = Pattern(1 << 30, "here", 1, 4)
        [outcome] = caller.call([asked])
        caller.close()
        assert outcome.kind == "answered" and not asked.strange_elements(outcome.answer), outcome
