"""`ksrv bench --find-batching`: finds the settings with the highest throughput within a latency goal.

`search` varies batch size, delay, instances and threads. For each candidate, `Bench.measure` writes the settings
into a copy of the model's folder, has a separate server load it, and raises the number of connections until the goal
is missed or the throughput no longer grows. Such a closed loop is optimistic, because a slow server gets fewer
requests. So `Bench.confirm` runs the best settings in an open loop. `write_best` writes them into model.yaml.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from ksrv.bench.load import Endpoint, Load, run
from ksrv.bench.report import Result, percentile_name, result_of
from ksrv.bench.requests import operations_of, rows_of
from ksrv.client import Client, ClientError
from ksrv.testing import Server

GAIN = 1.05
"""The factor by which a trial must be better than the best so far; a smaller gain may be noise."""

CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
DELAYS_MS = (1, 2, 5, 10, 20, 50)
MOST_BATCH = 64
CONFIRMED_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)
"""The shares of the best throughput that `Bench.confirm` tries as the rate of an open loop."""

MODEL_SUFFIXES = (".onnx", ".pt", ".pt2")


@dataclass(frozen=True)
class Candidate:
    """Settings of a model that are tried.

    Attributes:
        max_batch_size: 0 keeps the `batching:` of the model.
        threads: 0 if all instances share the cores.
    """

    max_batch_size: int = 1
    max_delay_ms: float = 0
    instances: int = 1
    threads: int = 0

    def keys(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of model.yaml that the settings change.

        Args:
            settings: The model's other keys. Those of its `batching:` are kept.
        """
        found: dict[str, Any] = {}
        if self.max_batch_size:
            sizes = {"max_batch_size": self.max_batch_size, "max_delay_ms": self.max_delay_ms}
            found["batching"] = (settings.get("batching") or {}) | sizes
        return found | {"instances": self.instances, "threads": self.threads}

    def __str__(self) -> str:
        batch = f"batch {self.max_batch_size}, delay {self.max_delay_ms:g} ms, "
        layout = f"{self.instances} x {self.threads or 'shared'} threads"
        return batch + layout if self.max_batch_size else layout


@dataclass(frozen=True)
class Trial:
    """The measurements of one candidate.

    Attributes:
        throughput: Rows a second within the goal; 0 if one connection already missed the goal.
        latency_ms: The latency at that throughput, or at one connection.
        connections: The number of connections at that throughput.
        error: Why the trial failed, or "".
    """

    candidate: Candidate
    throughput: float = 0.0
    latency_ms: float = float("inf")
    connections: int = 0
    error: str = ""

    def beats(self, other: "Trial") -> bool:
        """Return whether this trial is better than another by more than noise."""
        if self.throughput or other.throughput:
            return self.throughput > GAIN * other.throughput
        return self.latency_ms * GAIN < other.latency_ms


Measure = Callable[[Candidate], Trial]


def search(
    measure: Measure, cores: int, goal_ms: float, *, batches: bool = True, most_instances: int = 0
) -> tuple[Trial, list[Trial]]:
    """Find the settings with the highest throughput within a goal.

    The search is greedy: it varies first instances and threads, then the batch size, then the delay, and then
    instances and threads once more. Each step keeps the best settings of the steps before.

    Args:
        batches: Whether the model takes several rows at once.
        most_instances: The most instances to try; 0 for one on each core.

    Returns:
        The best trial, and all of them in order.
    """
    done: dict[Candidate, Trial] = {}

    def attempt(best: Trial, candidate: Candidate) -> Trial:
        if candidate not in done:
            done[candidate] = measure(candidate)
        return done[candidate] if done[candidate].beats(best) else best

    most = most_instances or max(cores, 2)
    first = Candidate() if batches else Candidate(0)
    best = done[first] = measure(first)
    best = reduce(attempt, _layouts(first, cores, most), best)
    if batches:
        sizes = [2**power for power in range(1, MOST_BATCH.bit_length())]
        current = best.candidate
        candidates = [replace(current, max_batch_size=size) for size in sizes]
        best = _best_until_worse(candidates, attempt, best)
        if best.candidate.max_batch_size > 1:
            current = best.candidate
            delays = [delay for delay in DELAYS_MS if delay <= goal_ms / 4]
            candidates = [replace(current, max_delay_ms=delay) for delay in delays]
            best = _best_until_worse(candidates, attempt, best)
            best = reduce(attempt, _layouts(best.candidate, cores, most), best)
    return best, list(done.values())


def _layouts(candidate: Candidate, cores: int, most: int) -> list[Candidate]:
    """Return candidates with 1, 2, 4, ... instances, each with shared threads, and with 1 thread each."""
    found = []
    instances = 1
    while instances <= most:
        found.append(replace(candidate, instances=instances, threads=0))
        if cores // instances > 1:  # else shared threads are one for each instance at most
            found.append(replace(candidate, instances=instances, threads=1))
        instances *= 2
    return found


def _best_until_worse(
    candidates: Sequence[Candidate], attempt: Callable[[Trial, Candidate], Trial], best: Trial
) -> Trial:
    """Try candidates in order, until two in a row are not better than the best."""
    worse = 0
    for candidate in candidates:
        found = attempt(best, candidate)
        worse = worse + 1 if found is best else 0
        best = found
        if worse == 2:
            break
    return best


@contextmanager
def copied_model(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a copy of a model's folder, without its model.yaml, and the model's settings. Main thread only.

    SIGTERM raises KeyboardInterrupt meanwhile, so that it, too, removes the copy.

    Args:
        path: The model's folder, or its file.

    Raises:
        ValueError: The path has no model whose settings can be changed.
        OSError: The model cannot be copied.
    """
    name = path.name if path.is_dir() else path.stem
    settings = settings_of(path)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:  # beside the model, because hard links do not cross file systems
        folder = Path(tempfile.mkdtemp(prefix=".ksrv-bench-", dir=path.resolve().parent))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="ksrv-bench-"))
    try:
        copy = folder / path.resolve().name if path.is_dir() else folder / name
        if path.is_dir():
            shutil.copytree(path, copy, copy_function=_link_or_copy)
        else:
            copy.mkdir()
            _link_or_copy(str(path), str(copy / path.name))
        # It may be a hard link: writing the trial's settings would change the model's file.
        (copy / "model.yaml").unlink(missing_ok=True)
        yield copy, settings
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def settings_of(path: Path) -> dict[str, Any]:
    """Return a model's settings: from its model.yaml, or the settings that ksrv would infer without this file.

    Args:
        path: The model's folder, or its file.

    Raises:
        ValueError: The path has no model whose settings can be changed.
    """
    if path.is_file():
        if path.suffix not in MODEL_SUFFIXES:
            raise ValueError(
                f"{path}: expected a model's folder, or a file that ends with "
                f"{', '.join(MODEL_SUFFIXES)}; ksrv import makes a folder of an archive"
            )
        return {"model": path.name}
    if not path.is_dir():
        raise ValueError(
            f"{path}: no such file or folder; expected a model's folder or file, not the name of a model"
        )
    file = path / "model.yaml"
    if file.is_file():
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"{file}: expected keys and values, such as handler: handler.py")
        return document
    if (path / "handler.py").is_file():
        return {"handler": "handler.py"}
    files = [file for file in path.iterdir() if file.suffix in MODEL_SUFFIXES]
    if len(files) != 1:
        raise ValueError(
            f"{path}: expected the folder of one model, with a model.yaml; a repository holds several"
        )
    return {"model": files[0].name}


def write_settings(folder: Path, settings: dict[str, Any], candidate: Candidate) -> None:
    """Write a model.yaml with the settings of a candidate."""
    changed = settings | candidate.keys(settings)
    (folder / "model.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")


def write_best(folder: Path, candidate: Candidate) -> Path:
    """Change the keys of a candidate in a model's model.yaml, and keep all other lines and comments.

    Returns:
        The file.

    Raises:
        ValueError: The keys cannot be replaced line by line, as in a file that is one {...}.
        OSError: The file cannot be written.
    """
    file = folder / "model.yaml"
    settings = settings_of(folder)
    keys = candidate.keys(settings)
    text = file.read_text(encoding="utf-8") if file.is_file() else yaml.safe_dump(settings)
    root: Any = yaml.compose(text)
    spans = {key.value: (key.start_mark.index, _end(value)) for key, value in root.value}
    # From the end of the text, so that the earlier spans stay valid.
    for key in sorted(keys.keys() & spans.keys(), key=lambda key: spans[key], reverse=True):
        start, end = spans[key]
        text = text[:start] + section({key: keys[key]}) + text[end:]
    missing = {key: value for key, value in keys.items() if key not in spans}
    if missing:
        text = text.rstrip("\n") + "\n" + section(missing) + "\n"
    with suppress(yaml.YAMLError):
        if yaml.safe_load(text) == settings | keys:
            file.write_text(text, encoding="utf-8")
            return file
    raise ValueError(f"{file}: its keys are not on separate lines; change the file by hand")


def _end(node: Any) -> int:
    """Return where the value of a key ends, without the comments that follow a block."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def section(keys: dict[str, Any]) -> str:
    """Return keys as lines of model.yaml, each on a line."""
    form: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "width": 10_000}
    texts = {key: yaml.safe_dump(value, **form) for key, value in keys.items()}
    # safe_dump adds a line "..." to a number.
    return "\n".join(f"{key}: {text.splitlines()[0]}" for key, text in texts.items())


@dataclass(frozen=True)
class Goal:
    """The latency goal, and how long to measure.

    Attributes:
        milliseconds: The goal for the percentile of the latencies.
        seconds: The duration of each measurement.
    """

    milliseconds: float
    percentile: float = 99.0
    seconds: float = 2.0

    def latency(self, result: Result) -> float:
        """Return the latency that is compared with the goal."""
        return result.latency_ms.get(percentile_name(self.percentile), float("inf"))


class Bench:
    """Measures settings on a separate server.

    Args:
        files: The files of the requests, as `operations_of` takes them.
        rows: Rows of each request.
        show: Called with each line about the progress.

    Attributes:
        settings: The keys of the model's model.yaml.
        batches: Whether the model takes several rows at once.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        server: Server,
        files: Sequence[str],
        rows: int,
        goal: Goal,
        show: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self.settings = settings
        self._client = Client(server.url, timeout=300.0)
        self._endpoint = Endpoint(server.url)
        self._goal = goal
        self._show = show
        metadata = self._client.metadata(folder.name)
        self._operations = operations_of(metadata, "", files, rows, {})
        whole = settings.get("batching") in ("off", False)
        self.batches = not whole and all(entry["shape"][:1] == [-1] for entry in metadata["inputs"])
        self._rows = rows_of(self._operations[0]) if self.batches else 1
        self._trials = 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def load(self, candidate: Candidate) -> None:
        """Have the server load the model with other settings.

        Raises:
            ClientError: The model cannot be loaded.
        """
        write_settings(self._folder, self.settings, candidate)
        self._client.load(self._folder.name)

    def measure(self, candidate: Candidate) -> Trial:
        """Load the model with the settings, and return their highest throughput within the goal."""
        self._trials += 1
        self._show(f"trial {self._trials}: {candidate}: loading")
        try:
            self.load(candidate)
        except ClientError as error:
            return Trial(candidate, error=str(error))
        best = Trial(candidate)
        flat = 0  # how many measurements in a row have not raised the throughput
        for connections in CONNECTIONS:
            self._show(f"trial {self._trials}: {candidate}: {connections} connections")
            seconds = self._goal.seconds
            result = self._run(Load(connections, warm_up=seconds / 4, seconds=seconds))
            if result.errors and not result.requests:
                return Trial(candidate, error=result.first_error)
            latency = self._goal.latency(result)
            if latency > self._goal.milliseconds or result.errors:
                if not best.throughput:
                    best = Trial(candidate, 0.0, latency, connections)
                break
            flat = flat + 1 if result.rows_per_second < GAIN * best.throughput else 0
            if result.rows_per_second > best.throughput:
                best = Trial(candidate, result.rows_per_second, latency, connections)
            if flat == 2:
                break
        return best

    def confirm(self, trial: Trial) -> Result | None:
        """Measure a trial's settings in an open loop, at the highest rate that stays within the goal.

        Returns:
            The result of that rate. None if every rate of `CONFIRMED_SHARES` misses the goal.
        """
        self.load(trial.candidate)
        for share in CONFIRMED_SHARES:
            rate = share * trial.throughput / self._rows
            self._show(f"confirming {rate:.0f} requests a second in an open loop")
            seconds = 2 * self._goal.seconds
            connections = max(16, 2 * trial.connections)
            load = Load(connections, rate=rate, warm_up=seconds / 4, seconds=seconds)
            result = self._run(load)
            if not result.errors and self._goal.latency(result) <= self._goal.milliseconds:
                return result
        return None

    def _run(self, load: Load) -> Result:
        samples = run(self._endpoint, self._operations, load)
        return result_of(self._endpoint.url, load, samples, self._rows)
