"""`ksrv bench`: throughput and latency of a model, and the settings that serve it best."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ksrv.bench.host import Usage, server_processes, usage
from ksrv.bench.load import Endpoint, Load, run
from ksrv.bench.loadgen import SCENARIOS, Run, run_loadgen, summary_of
from ksrv.bench.plot import FORMATS, draw
from ksrv.bench.report import Result, remarks, result_of, table
from ksrv.bench.requests import operations_of, rows_of
from ksrv.cli.progress import Progress
from ksrv.client import Client, ClientError
from ksrv.client.command.connection import DEFAULT_URL, Credentials, credential_options
from ksrv.client.operations import Operation
from ksrv.client.tensors import Array
from ksrv.machine.cgroups import usable_cores

if TYPE_CHECKING:
    from ksrv.bench.batching import Goal, Trial

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def _numbers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """Return the positive numbers of a comma-separated list."""
    if value is None:
        return None
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        found = (0.0,)
    if not all(0 < value < float("inf") for value in found):
        raise click.BadParameter(f"expected positive numbers between commas, got {value!r}")
    return found


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of --shape by input."""
    found = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        try:
            if not equals:
                raise ValueError
            found[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            raise click.BadParameter(
                f"expected NAME=1,224,224,3, got {text!r}", param_hint="--shape"
            ) from None
    return found


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1)
@click.option(
    "--url",
    "urls",
    multiple=True,
    envvar="KSRV_URL",
    show_envvar=True,
    help=f"The server, over REST (http://) or gRPC (grpc://). May be repeated, to measure one after "
    f"the other.  [default: {DEFAULT_URL}]",
)
@click.option("--version", default="", help="The model's version.")
@click.option(
    "--concurrency",
    metavar="NUMBERS",
    callback=_numbers,
    help="Closed loop: the number of connections. Each waits for its answer. Several "
    "numbers are measured one after the other.  [default: 1,4,16]",
)
@click.option(
    "--rate",
    metavar="NUMBERS",
    callback=_numbers,
    help="Open loop: requests per second, sent when they are due; the latency counts from then. "
    "Several numbers are measured one after the other.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="Open loop: random or equal intervals between requests.",
)
@click.option(
    "--connections",
    default=64,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Open loop and --replay: most connections.",
)
@click.option("--seconds", default=10.0, show_default=True, help="Seconds to measure.")
@click.option("--warm-up", default=2.0, show_default=True, help="Seconds before the measurement.")
@click.option(
    "--rows",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Rows of each request; how often the value of a file is repeated.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    help="NAME=1,224,224,3: shape of generated values for the input NAME.",
)
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Processes that send the requests.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the latencies of each load into a .svg, .png or .pdf file; needs matplotlib.",
)
@click.option(
    "--loadgen",
    type=click.Choice(tuple(SCENARIOS)),
    help="Run this scenario of MLPerf's LoadGen with --connections instead; server needs one --rate, and --goal "
    "and --percentile for the latency that it may have.",
)
@click.option(
    "--loadgen-logs",
    type=click.Path(file_okay=False, path_type=Path),
    default="loadgen",
    show_default=True,
    help="With --loadgen: folder for LoadGen's logs.",
)
@click.option(
    "--find-batching",
    is_flag=True,
    help="Find the settings that serve most requests within --goal. MODEL is then the path of a model.",
)
@click.option(
    "--goal", type=float, help="With --find-batching: milliseconds that a request may take."
)
@click.option(
    "--percentile",
    type=click.Choice(["50", "90", "95", "99", "99.9"]),
    default="99",
    show_default=True,
    help="With --find-batching: percentile of the latency that --goal limits.",
)
@click.option(
    "--trial-seconds",
    default=2.0,
    show_default=True,
    help="With --find-batching: seconds of a trial.",
)
@click.option(
    "--write", is_flag=True, help="With --find-batching: write the settings into model.yaml."
)
@click.option(
    "--replay",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Send the recorded requests of MODEL in this file or folder once, at their recorded pace or at "
    "--rate, and compare the answers (docs/record.md).",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1_000_000),
    help="With --replay: factor of the recorded pace.  [default: 1]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="With --replay: largest relative difference of a float from the recorded one (absolute near 0).  "
    "[default: 1e-05]",
)
@credential_options
@click.option("--timeout", default=30.0, show_default=True, help="Seconds to wait for an answer.")
def bench(
    model: str,
    files: tuple[str, ...],
    urls: tuple[str, ...],
    version: str,
    concurrency: tuple[float, ...] | None,
    rate: tuple[float, ...] | None,
    arrivals: str,
    connections: int,
    seconds: float,
    warm_up: float,
    rows: int,
    shapes: tuple[str, ...],
    processes: int,
    as_json: bool,
    plot: Path | None,
    loadgen: str | None,
    loadgen_logs: Path,
    find_batching: bool,
    goal: float | None,
    percentile: str,
    trial_seconds: float,
    write: bool,
    replay: Path | None,
    speed: float | None,
    tolerance: float | None,
    token_file: Path | None,
    ca: str | None,
    timeout: float,
) -> None:
    """Send requests to MODEL, and print throughput and latency.

    \b
      ksrv bench cats cat.jpg dog.jpg --concurrency 1,8
      ksrv bench models/cats cat.jpg --find-batching --goal 50

    Each of FILES is a request; the files are sent in turn. For a model with several inputs, write NAME=FILE. A
    .npy file is an array, any other file one element of bytes, such as a JPEG. Without files, the command
    generates values in the declared shapes.

    --loadgen prints what LoadGen measured, and whether the run is valid by its rules.

    --find-batching serves a copy of the model at the path MODEL with many settings, and prints the best
    section of model.yaml, or writes it with --write.

    The exit status is 1 if no request was answered; with --replay also if an answer differs from the
    recorded one or a request fails.
    """  # noqa: D301 - click reads the character
    if seconds <= 0 or warm_up < 0 or trial_seconds <= 0:
        raise click.UsageError("expected positive numbers of seconds")
    if replay is None and (speed is not None or tolerance is not None):
        raise click.UsageError(f"{'--tolerance' if speed is None else '--speed'} needs --replay")
    if write and (not find_batching or not Path(model).is_dir()):
        raise click.UsageError("--write needs --find-batching and the folder of a model")
    if find_batching and replay is None:
        if goal is None or goal <= 0:
            raise click.UsageError("--find-batching needs --goal MILLISECONDS")
        _find_batching(model, files, rows, goal, float(percentile), trial_seconds, as_json, write)
        return
    credentials = Credentials(token_file, ca)
    if replay is not None:
        if len(urls) > 1 or len(rate or ()) > 1 or concurrency or files or find_batching:
            raise click.UsageError(
                "--replay takes one --url and one --rate, and neither files, --concurrency nor --find-batching"
            )
        if rate and speed is not None:
            raise click.UsageError("expected --rate or --speed, not both")
        client = credentials.client(urls[0] if urls else DEFAULT_URL, timeout, retries=0)
        pace = (rate[0] if rate else None, speed or 1.0)
        close = 1e-5 if tolerance is None else tolerance
        _replay(client, model, version, replay, pace, connections, close, as_json)
        return
    if loadgen:
        if len(urls) > 1 or concurrency or (loadgen == "server") != (len(rate or ()) == 1):
            raise click.UsageError(
                "--loadgen takes one --url and no --concurrency; server alone takes --rate, and only one"
            )
        if (loadgen == "server") != (goal is not None and goal > 0):
            raise click.UsageError(
                "--loadgen server needs --goal MILLISECONDS, which no other scenario takes"
            )
        target = _Target(urls[0] if urls else DEFAULT_URL, credentials, timeout, model, version)
        operations = target.operations(files, rows, _shapes(shapes))
        asked = Run(
            loadgen, seconds, (rate or (1.0,))[0], goal or 1.0, float(percentile), loadgen_logs
        )
        found = target.run_loadgen(operations, connections, asked)
        click.echo(json.dumps(found, indent=2) if as_json else summary_of(loadgen_logs))
        if found["result_validity"] != "VALID":
            raise click.exceptions.Exit(1)
        return
    if plot is not None and (plot.suffix not in FORMATS or find_spec("matplotlib") is None):
        raise click.UsageError(
            f"--plot needs a file that ends with {', '.join(FORMATS)}, and matplotlib: pip install matplotlib"
        )
    if concurrency and rate:
        raise click.UsageError("expected --concurrency (closed loop) or --rate (open loop)")
    timing = {"warm_up": warm_up, "seconds": seconds, "processes": processes}
    if rate:
        loads = [
            Load(connections, rate=value, poisson=arrivals == "poisson", **timing)  # type: ignore[arg-type]
            for value in rate
        ]
    else:
        loads = [Load(int(count), **timing) for count in concurrency or (1, 4, 16)]  # type: ignore[arg-type]
    results: list[Result] = []
    latencies: dict[str, Array] = {}
    with Progress() as progress:
        for url in urls or (DEFAULT_URL,):
            target = _Target(url, credentials, timeout, model, version)
            operations = target.operations(files, rows, _shapes(shapes))
            for load in loads:
                name = f"{url}: {_describe(load)}"
                progress.show(f"{name}, {warm_up + seconds:g} s")
                results.append(target.measure(operations, load))
                latencies[name] = results[-1].milliseconds
    if plot is not None:
        try:
            draw(latencies, plot, f"{model}, {rows} rows a request")
        except OSError as error:
            raise click.ClickException(f"{plot} cannot be written: {error}") from error
    if as_json:
        document = {"model": model, "results": [result.document() for result in results]}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(f"{model}, {rows} rows a request; latency in milliseconds")
        click.echo(table(results))
    for line in remarks(results, processes):
        click.echo(f"Note: {line}", err=True)
    if not any(result.requests for result in results):
        raise click.exceptions.Exit(1)


def _replay(
    client: Client,
    model: str,
    version: str,
    path: Path,
    pace: tuple[float | None, float],
    connections: int,
    tolerance: float,
    as_json: bool,
) -> None:
    """Send the recorded requests of a model once, and print how their answers differ from the records.

    Args:
        pace: Requests a second, or None for the recorded pace; and the factor of the recorded pace.
    """
    from ksrv.bench.replay import due_times, records_of, replay
    from ksrv.records import RecordError

    try:
        records = records_of(path, model, version)
    except RecordError as error:
        raise click.ClickException(str(error)) from error
    if not records:
        raise click.ClickException(f"{path} holds no record of the model {model}")
    due = due_times(records, *pace)
    with Progress() as progress:

        def show(sent: int) -> None:
            progress.show(f"{sent} of {len(records)} sent, {due[-1]:.0f} s")

        result = replay(
            client,
            model,
            version,
            records,
            due,
            connections=connections,
            tolerance=tolerance,
            progress=show,
        )
    if as_json:
        click.echo(json.dumps({"model": model, **result.document()}, indent=2))
    else:
        for line in result.lines():
            click.echo(line)
    if not result.sent or result.different or result.failed:
        raise click.exceptions.Exit(1)


def _describe(load: Load) -> str:
    if load.rate is not None:
        return f"open loop, {load.rate:g} requests a second"
    return f"closed loop, {load.connections} connections"


class _Target:
    """One server and the model that is measured."""

    def __init__(
        self, url: str, credentials: Credentials, timeout: float, model: str, version: str
    ) -> None:
        self._client = credentials.client(url, timeout, retries=0)
        url = self._client.url
        self._endpoint = Endpoint(url, credentials.token, credentials.ca, timeout)
        self._model, self._version = model, version
        parts = urlsplit(url)
        # Only of a server on this machine, whose CPU and memory can be read.
        self._port = parts.port if parts.hostname in LOCAL_HOSTS else None

    def operations(
        self, files: Sequence[str], rows: int, shapes: dict[str, tuple[int, ...]]
    ) -> list[Operation]:
        """Return the requests to send.

        Raises:
            click.ClickException: The model, a file or a shape cannot be used.
        """
        try:
            metadata = self._client.metadata(self._model, self._version)
            return operations_of(metadata, self._version, files, rows, shapes)
        except (ClientError, ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error

    def measure(self, operations: list[Operation], load: Load) -> Result:
        """Put a load on the server, and return the result, with the server's resources if they can be read."""
        pids = server_processes(self._port) if self._port else []
        used: list[Usage | None] = []
        counts = self._counts()
        samples = run(self._endpoint, operations, load, lambda: used.append(usage(pids)))
        later = self._counts()
        result = result_of(self._endpoint.url, load, samples, rows_of(operations[0]))
        before, after = used
        if before is not None and after is not None:
            result.server_cores = (after.cpu - before.cpu) / load.seconds
            result.server_bytes = after.memory
        if counts is not None and later is not None and later[1] > counts[1]:
            result.batch_rows = (later[0] - counts[0]) / (later[1] - counts[1])
        return result

    def run_loadgen(
        self, operations: list[Operation], connections: int, asked: Run
    ) -> dict[str, Any]:
        """Run LoadGen, and return its results."""
        try:
            return run_loadgen(self._endpoint, operations, connections, asked)
        except ModuleNotFoundError as error:
            raise click.ClickException(f"{error}: pip install mlcommons-loadgen") from error
        except (ClientError, OSError) as error:
            raise click.ClickException(str(error)) from error

    def _counts(self) -> tuple[int, int] | None:
        """Return how many rows and batches the model has run, or None if the server has no statistics."""
        try:
            (found, *_) = self._client.statistics(self._model, self._version)
            return int(found["inference_count"]), int(found["execution_count"])
        except (ClientError, KeyError, ValueError):
            return None


def _find_batching(
    model: str,
    files: Sequence[str],
    rows: int,
    goal_ms: float,
    percentile: float,
    seconds: float,
    as_json: bool,
    write: bool,
) -> None:
    """Find the best settings of a model, print all trials and these settings, and write the settings if asked."""
    from ksrv.bench.batching import Goal, search, write_best
    from ksrv.model.config import CALLING_INSTANCES
    from ksrv.testing import ServerFailed

    goal = Goal(goal_ms, percentile, seconds)
    files = [_absolute(text) for text in files]
    try:
        with Progress() as progress, _own_server(model, files, rows, goal, progress) as measured:
            cores = usable_cores()
            settings = measured.settings
            best, trials = search(
                measured.measure,
                cores,
                goal_ms,
                batches=measured.batches,
                most_instances=CALLING_INSTANCES if "calls" in settings else 0,
            )
            confirmed = measured.confirm(best) if best.throughput else None
    except (ClientError, ServerFailed, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    name = f"p{percentile:g}"
    if as_json:
        document = {
            "goal_ms": goal_ms,
            "percentile": percentile,
            "best": {**vars(best.candidate), "rows_per_second": best.throughput},
            "confirmed": None if confirmed is None else confirmed.document(),
            "trials": [
                {
                    **vars(trial.candidate),
                    "rows_per_second": trial.throughput,
                    "latency_ms": trial.latency_ms if trial.latency_ms < float("inf") else None,
                    "connections": trial.connections,
                    "error": trial.error,
                }
                for trial in trials
            ],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _print_trials(goal, name, trials, best, confirmed, settings)
    if write and best.throughput:
        try:
            click.echo(f"wrote {write_best(Path(model), best.candidate)}", err=True)
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error
    if not best.throughput:
        raise click.ClickException(
            f"no settings reach {name} <= {goal_ms:g} ms; the best was {best.latency_ms:.1f} ms "
            f"with {best.candidate}" if not best.error else best.error
        )  # fmt: skip


def _print_trials(
    goal: "Goal",
    name: str,
    trials: "list[Trial]",
    best: "Trial",
    confirmed: Result | None,
    settings: dict[str, Any],
) -> None:
    """Print a line for each trial, then the best settings as a section of model.yaml."""
    from ksrv.bench.batching import section

    for trial in trials:
        shown = trial.error or f"{trial.throughput:.0f} rows/s, {name} {trial.latency_ms:.1f} ms"
        if not trial.error and not trial.throughput:
            shown = f"misses the goal: {name} {trial.latency_ms:.1f} ms"
        click.echo(f"{trial.candidate!s:50}  {shown}")
    click.echo("")
    if best.throughput:
        click.echo(f"# {best.throughput:.0f} rows/s within {name} <= {goal.milliseconds:g} ms, closed loop "
                   f"with {best.connections} connections")  # fmt: skip
        if confirmed is not None:
            click.echo(
                f"# open loop at {confirmed.rate:.0f} requests/s: "
                f"{name} {goal.latency(confirmed):.1f} ms"
            )
        else:
            click.echo("# no open loop at half of that or more stayed within the goal")
        click.echo(section(best.candidate.keys(settings)))


def _absolute(text: str) -> str:
    """Return FILE or NAME=FILE with an absolute path, because the server has another working folder."""
    name, equals, path = text.partition("=")
    if equals and not Path(text).is_file():
        return f"{name}={Path(path).resolve()}"
    return str(Path(text).resolve())


@contextmanager
def _own_server(
    model: str, files: Sequence[str], rows: int, goal: Any, progress: Progress
) -> Iterator[Any]:
    """Serve a copy of a model, and yield the `Bench` that measures it."""
    from ksrv.bench.batching import Bench, Candidate, copied_model, write_settings
    from ksrv.testing import Server

    progress.show("starting a server")
    with copied_model(Path(model)) as (folder, settings):
        write_settings(folder, settings, Candidate(0))
        called = [Path(model).resolve().parent / str(name) for name in settings.get("calls") or ()]
        if missing := [path for path in called if not path.exists()]:
            raise ValueError(f"{missing[0]}: no such model; {model} calls it")
        with Server([folder, *called], grpc="off", start_timeout=300.0) as server:
            measured = Bench(folder, settings, server, files, rows, goal, progress.show)
            try:
                yield measured
            finally:
                measured.close()
