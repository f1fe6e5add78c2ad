"""`ksrv check`: loads and warms up models as `ksrv serve` would, without a server, and reports the models that fail."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ksrv.cli.progress import Progress
from ksrv.cli.signature import signature_options
from ksrv.engine.settings import PARALLEL_LOADS

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.engine.model import ModelVersion

_POLL_SECONDS = 0.2


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--parallel-loads",
    type=click.IntRange(min=1),
    default=PARALLEL_LOADS,
    show_default=True,
    help="Models to load at the same time.",
)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run this file as a request, as `warmup:` would, and say by how much its answers differ: run twice, in a "
    "batch of 8, padded, and in the other executor. May be repeated; needs PATHS with one model.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Lowest level to log, on stderr.",
)
@signature_options
def check(
    paths: tuple[Path, ...],
    as_json: bool,
    parallel_loads: int,
    samples: tuple[Path, ...],
    log_level: str,
) -> None:
    """Load and warm up the models at PATHS, and report the models that fail.

    PATHS are as for `ksrv serve`. The command starts no server.

    The exit status is 0 if every model is ready and warm, 1 if one is not, or if answers to a --sample differ by more
    than 0.001, relative and absolute, or if the --signature does not fit, and 2 if a path holds no model.
    """
    from ksrv.cli.sample_answers import compare_answers
    from ksrv.dialects.registry import formats
    from ksrv.engine.engine import Engine, EngineSettings
    from ksrv.repository.layout import Repository, RepositoryError
    from ksrv.server import logs
    from ksrv.server.settings import ServerSettings
    from ksrv.server.workers.banner import print_models

    settings = ServerSettings(log_level=log_level)  # type: ignore[arg-type]
    logs.configure(settings)
    out = sys.stdout
    if as_json:  # what handlers print is not part of the result
        click.get_current_context().with_resource(redirect_stdout(sys.stderr))
    repository = Repository(paths, formats())
    engine = Engine(repository, EngineSettings(parallel_loads=parallel_loads))
    try:
        if not repository.scan():
            repository.check()  # raises the error that says what a path must contain
        with _shown_progress(engine):
            engine.start(wait=True)
    except RepositoryError as error:
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(2) from error
    try:
        found = _results(engine)
        if samples:
            if len(found) != 1:
                raise click.UsageError(f"--sample is for one model, and PATHS have {len(found)}")
            if found[0]["ok"]:
                [model] = engine.loaded()
                found[0]["samples"] = list(compare_answers(model, repository, samples))
        if as_json:
            click.echo(json.dumps({"models": found}, indent=2), file=out)
        else:
            print_models(engine, None, settings)
            for line in _remarks(found):
                click.echo(line)
    finally:
        engine.close(timeout=10.0)
    if not all(sample["ok"] for entry in found for sample in (entry, *entry.get("samples", ()))):
        raise click.exceptions.Exit(1)


def _results(engine: "Engine") -> list[dict[str, Any]]:
    """Return for each model and version whether it is ready and warm, with its inputs and outputs."""
    loaded = {(model.spec.name, model.spec.version): model for model in engine.loaded()}
    found = []
    for state in engine.index():
        model = loaded.get((state.name, state.version))
        error = model.warm_up_error if model is not None else ""
        entry: dict[str, Any] = {
            "name": state.name,
            "version": state.version,
            "state": state.state,
            "reason": state.reason or error,
            "ok": state.state == "READY" and not error,
            "warm": False,
        }
        if model is not None:
            entry["warm"] = _was_run(model) and not error
            entry["device"] = model.spec.device
            entry["load_seconds"] = model.load_ns / 1e9
            entry["warm_up_seconds"] = model.warm_up_ns / 1e9
            for key, tensors in (("inputs", model.spec.inputs), ("outputs", model.spec.outputs)):
                entry[key] = [
                    {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.wire_shape}
                    for tensor in tensors
                ]
        found.append(entry)
    return found


def _was_run(model: "ModelVersion") -> bool:
    """Return whether the model's warm-up had a request to run."""
    from ksrv.engine.instances.warmup_requests import generated

    wanted = model.config.warmup
    return generated(model.spec) is not None if wanted is True else bool(wanted)


def _remarks(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines below the table."""
    yield ""
    for entry in found:
        if entry["ok"] and not entry["warm"]:
            yield (
                f"{entry['name']}: ready, but not run, because an input has an open shape or texts, or "
                f"`warmup` is false. If it has a model.yaml, sample files under `warmup:` there run it here"
            )
    if bad := [entry["name"] for entry in found if not entry["ok"]]:
        yield f"{len(bad)} of {len(found)} models cannot be served as they are: {', '.join(bad)}"
    else:
        yield f"{len(found)} of {len(found)} models are ready"
    for entry in found[0].get("samples", ()):
        yield f"{entry['sample']} {entry['comparison']}: {entry['output']} {entry['result']}"


@contextmanager
def _shown_progress(engine: "Engine") -> Iterator[None]:
    """Show which models are loading, on another thread, while the calling thread loads them."""
    done = threading.Event()

    def watch(progress: Progress) -> None:
        while not done.wait(_POLL_SECONDS):
            states = engine.index()
            loading = [state.name for state in states if state.state == "LOADING"]
            text = f"loading {', '.join(loading)}" if loading else "looking for models"
            progress.show(f"{len(states) - len(loading)} of {len(states)} models; {text}")

    with Progress() as progress:
        thread = threading.Thread(target=watch, args=(progress,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
