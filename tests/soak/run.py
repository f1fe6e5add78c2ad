"""Load two servers with good and bad traffic of all kinds, and fail if anything of theirs grows.

One server speaks cleartext and has two workers. The other server speaks TLS and has one worker, which sequences and
shared memory need. Every request has a different pattern, which its answer must show. Samples and their plot are in build/soak.

python -m tests.soak.run --minutes 60
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ksrv.testing import Server
from tests.soak import traffic
from tests.soak.plot import plot
from tests.soak.samples import Sampler
from tests.soak.traffic import Tallied, Tally, Target
from tests.soak.trend import growing
from tests.support.certificates import self_signed
from tests.support.faults.callers import CALLERS
from tests.support.faults.crowds import Crowd
from tests.support.faults.health import assert_answers_exactly, page
from tests.support.faults.storms import Load, running
from tests.support.processes import children
from tests.support.wait_until import wait_until

OUT = Path("build/soak")
WARM_UP = 0.4
"""The share of the run in which pools, caches and threads may still come."""
CROWD = 200
CONTROL = "control-token"
SAMPLES = 600
"""At most so many are taken."""


def start(stack: ExitStack) -> dict[str, Target]:
    """Start the servers; they end with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ksrv-soak-")))
    key, certificate = self_signed(folder)
    clear = Server(
        traffic.write_models(folder / "clear", sequences=False), workers=2, head_timeout=5.0
    )
    (folder / "control").write_text(f"{CONTROL}\n")
    secret = Server(
        traffic.write_models(folder / "secret", sequences=True), allow_shared_memory=True,
        control_token_file=str(folder / "control"), tls_cert=str(certificate), tls_key=str(key),
    )  # fmt: skip
    for server in (clear, secret):
        stack.enter_context(server)
    wait_until(lambda: clear.log.count("ready: True") == 2, tell=lambda: clear.log)
    return {"cleartext": Target(clear), "TLS": Target(secret, certificate, CONTROL)}


def replace_workers(target: Target, seconds: float, seed: str) -> None:
    """Have the master replace its workers several times while clients of every protocol call: nothing is lost."""
    until = time.monotonic() + seconds
    with Load(target.addresses, seed, stays=False, pause=0.05, ledger=Tally()) as load:
        while time.monotonic() < until:
            os.kill(target.server.pid, signal.SIGHUP)
            load.wait_for(5)
    server = target.server
    wait_until(lambda: len(children(server.pid)) == 2, 60, lambda: server.log[-3000:])
    wait_until(lambda: server.get("/v2/health/ready")[0] == 200)


def everything(
    targets: dict[str, Target], crowd: Crowd, seed: str
) -> dict[str, tuple[traffic.Step, float]]:
    """Return the steps by name, with the seconds between them."""
    steps: dict[str, tuple[traffic.Step, float]] = {}

    def draw(name: str) -> random.Random:
        return random.Random(f"{seed}:{name}")

    for name, target in targets.items():
        steps |= {
            f"{name}: {what.__name__}": (what(target, draw(f"{name} {what.__name__}")), pause)
            for what, pause in (
                (traffic.pictures, 0.1), (traffic.streams, 0.1), (traffic.odd_requests, 0.05),
                (traffic.reloads, 3.0), (traffic.killed_handlers, 7.0),
            )
        }  # fmt: skip
        steps[f"{name}: faulty network"] = traffic.faulty_network(target, f"{seed}:{name}"), 0.5
    clear, secret = targets["cleartext"], targets["TLS"]
    steps["odd messages"] = traffic.odd_messages(clear, draw("odd messages")), 0.05
    steps["slow clients"] = traffic.slow_clients(crowd, CROWD // 10), 0.5
    steps["sequences"] = traffic.sequences(secret, draw("sequences")), 0.05
    steps["shared memory"] = traffic.shared_memory(secret, draw("shared memory")), 0.2
    return steps


def soak(targets: dict[str, Target], seconds: float, seed: str) -> tuple[Sampler, list[str]]:
    """Load the servers; returns the samples, and what was wrong.

    The first failure ends it.
    """
    tallies = {name: Tally() for name in targets}
    tallied, over, failures = Tallied(), threading.Event(), list[str]()
    with ExitStack() as stack:
        clear = targets["cleartext"].server
        crowd = stack.enter_context(Crowd(clear.http, random.Random(seed), CROWD))
        sampler = Sampler(targets, tallies)
        loads = [
            stack.enter_context(
                Load(target.addresses, f"{seed}:{name}", trusted=target.trusted, pause=0.05, ledger=tallies[name])
            )
            for name, target in targets.items()
        ]  # fmt: skip
        repeated = [
            partial(tallied.repeat, name, step, pause, over)
            for name, (step, pause) in everything(targets, crowd, seed).items()
        ]
        stack.enter_context(running(repeated, failures))
        stack.callback(over.set)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not over.wait(max(1.0, seconds / SAMPLES)):
            try:
                sampler.look()
            except AssertionError as error:
                failures.append(str(error))
            failures += tallied.failures
            failures += [failure for load in loads for failure in load.ledger.failures]
            for load in loads:
                load.ledger.failures.clear()
            if failures:
                break
    calls = sum((tally.counts for tally in tallies.values()), start=traffic.Counter())
    print(f"{sum(calls.values())} calls over {', '.join(CALLERS)}; steps: {dict(tallied.steps)}")
    return sampler, failures


def judge_rest(name: str, target: Target) -> list[str]:
    """Return the faults of a server after its load."""
    server = target.server
    found = []
    try:
        wait_until(
            lambda: server.get("/v2/health/ready")[0] == 200, tell=lambda: server.log[-2000:]
        )
        assert_answers_exactly(target.addresses, target.trusted)

        def held() -> dict[str, float]:
            names = ("ksrv_pending_requests", "ksrv_bytes_in_flight")
            return {
                key: value for key, value in page(server).items() if key.startswith(names) and value
            }

        wait_until(lambda: not held(), tell=lambda: f"held at rest: {held()}")
    except AssertionError as error:
        found.append(f"{name}: {error}")
    if "Traceback" in server.log:
        at = server.log.index("Traceback")
        found.append(f"{name}: its log has a traceback: {server.log[max(0, at - 300) : at + 1500]}")
    return found


def main() -> int:
    """Run the soak; returns 1 if something was wrong or grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", default=str(int(time.time())), help="repeats the calls of a run")
    given = parser.parse_args()
    seconds = 60 * given.minutes
    print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        targets = start(stack)
        replace_workers(targets["cleartext"], min(60.0, seconds / 10), given.seed)
        sampler, failures = soak(targets, seconds, given.seed)
        for name, target in targets.items():
            failures += judge_rest(name, target)
            (OUT / f"{name}.log").write_text(target.server.log)
    samples = {f"{panel}: {name}": one.values for (panel, name), one in sampler.series.items()}
    (OUT / "samples.json").write_text(json.dumps(samples) + "\n")
    plot(sampler.series.values(), seconds, WARM_UP, OUT / "soak.svg")
    failures += growing(list(sampler.series.values()), WARM_UP)
    print(*(failures or ["flat, and every answer was right"]), sep="\n")
    print(f"{OUT}/soak.svg, samples.json and the servers' logs")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
