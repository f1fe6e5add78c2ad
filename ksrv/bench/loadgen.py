"""Runs MLPerf's LoadGen against a served model. LoadGen decides when queries are due and whether a run is valid."""

import json
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksrv.bench.load import Endpoint, Sender, make_senders
from ksrv.client.operations import Operation

_TRIALS = 3
"""How often a run may be repeated that was too short, because LoadGen prepares queries for an expected speed."""

SCENARIOS = {"single-stream": "SingleStream", "offline": "Offline", "server": "Server"}


@dataclass(frozen=True)
class Run:
    """The parameters of a run of LoadGen.

    Attributes:
        scenario: A key of SCENARIOS.
        seconds: The least duration.
        rate: Queries a second of the scenario "server".
        goal_ms: Milliseconds that the `percentile` of its latencies may take.
        folder: LoadGen's logs.
    """

    scenario: str
    seconds: float
    rate: float
    goal_ms: float
    percentile: float
    folder: Path


class _Clients:
    """A thread for each connection, which answers LoadGen's samples."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in senders]
        for thread in self._threads:
            thread.start()

    def issue(self, samples: Any) -> None:
        """Take a query of LoadGen."""
        for sample in samples:
            self._waiting.put((sample.id, sample.index))

    def _run(self, sender: Sender) -> None:
        from mlperf_loadgen import QuerySampleResponse, QuerySamplesComplete

        while sample := self._waiting.get():
            try:
                if not self.failures:
                    sender.send(sample[1])
            except BaseException as error:  # noqa: BLE001 - LoadGen waits until each sample is complete
                self.failures.append(error)
            QuerySamplesComplete([QuerySampleResponse(sample[0], 0, 0)])

    def close(self) -> None:
        """End the threads, and raise the first failure of a request."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]


def run_loadgen(
    endpoint: Endpoint, operations: Sequence[Operation], connections: int, asked: Run
) -> dict[str, Any]:
    """Run LoadGen, and return the results of its log by their keys, such as "result_validity".

    Raises:
        ModuleNotFoundError: LoadGen is not installed.
        ClientError: A request failed.
        OSError: The logs cannot be written.
    """
    import mlperf_loadgen as loadgen

    asked.folder.mkdir(parents=True, exist_ok=True)
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, SCENARIOS[asked.scenario])
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1000 * asked.seconds)
    settings.min_query_count = 1
    settings.server_target_qps = asked.rate
    settings.server_target_latency_ns = round(1e6 * asked.goal_ms)
    settings.server_target_latency_percentile = asked.percentile / 100
    output, log = loadgen.LogOutputSettings(), loadgen.LogSettings()
    output.outdir = str(asked.folder)
    log.log_output, log.enable_trace = output, False
    count = len(operations)
    library = loadgen.ConstructQSL(count, count, lambda _: None, lambda _: None)

    def run() -> dict[str, Any]:
        with make_senders(endpoint, operations, connections) as senders:
            clients = _Clients(senders)
            system = loadgen.ConstructSUT(clients.issue, lambda: None)
            loadgen.StartTestWithLogSettings(system, library, settings, log)
            loadgen.DestroySUT(system)
            clients.close()
        lines = (asked.folder / "mlperf_log_detail.txt").read_text("utf-8").splitlines()
        entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        return {entry["key"]: entry["value"] for entry in entries}

    try:
        found = run()
        for _ in range(_TRIALS):
            if found["result_min_duration_met"]:
                break
            settings.single_stream_expected_latency_ns = found["result_mean_latency_ns"] // 2
            settings.offline_expected_qps = 2 * found.get("result_samples_per_second", 1.0)
            found = run()
        return found
    finally:
        loadgen.DestroyQSL(library)


def summary_of(folder: Path) -> str:
    """Return LoadGen's own summary of the run whose logs are in a folder."""
    return (folder / "mlperf_log_summary.txt").read_text("utf-8")
