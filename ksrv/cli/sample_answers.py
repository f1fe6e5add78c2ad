"""`ksrv check --sample FILE`: whether the answer to a request depends on how the server runs it.

The sample runs twice, in a batch with seven other rows, padded as a longer neighbour would pad it, and in the other
executor. An int8 file that takes its scale from the whole batch, for example, answers differently beside neighbours.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from msgspec.structs import replace

from ksrv.dialects.registry import formats
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.engine.instances.warmup import are_alike
from ksrv.engine.instances.warmup_requests import samples
from ksrv.engine.model import ModelVersion
from ksrv.errors import KsrvError
from ksrv.model.datatypes import DTYPES, widened
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor
from ksrv.testing.joined_requests import run_batch

BATCH = 8


class OtherExecutor(Repository):
    """A repository whose models run in a process instead of inline, or the reverse."""

    def scan(self) -> dict[str, ModelEntry]:
        """See `Repository.scan`."""
        entries = super().scan()
        for entry in entries.values():
            for version, source in entry.versions.items():
                if source.config is not None:
                    other = "inline" if source.config.executor == "process" else "process"
                    config = replace(source.config, executor=other, instances=1, warmup=False)
                    entry.versions[version] = replace(source, config=config)
        return entries


def compare_answers(
    model: ModelVersion, repository: Repository, files: Sequence[Path]
) -> Iterator[dict[str, Any]]:
    """Yield a mapping of sample, comparison, output, result and ok for each sample, comparison and output.

    Args:
        model: The loaded model. Nothing else may run on it.
        repository: The repository that has the model alone.

    Raises:
        ClickException: A sample cannot be read, or fails alone.
    """
    other = Engine(OtherExecutor(repository.paths, formats()), EngineSettings())
    other.start(wait=True)
    try:
        requests = [(file.name, sample) for file in files for sample in samples(model.spec, file)]
        for name, request in requests:
            runs = _runs(model, other, request, [req for _, req in requests if req is not request])
            alone = run_batch(model, [request])[0].outputs
            for comparison, run in runs.items():
                try:
                    results = list(map(_difference, alone, run()))
                except KsrvError as error:
                    reason = f"not compared: {error.message}"
                    results = [{"output": "every output", "result": reason, "ok": True}]
                for result in results:
                    yield {"sample": name, "comparison": comparison} | result
    except KsrvError as error:
        raise click.ClickException(error.message) from None
    finally:
        other.close(timeout=10.0)


def _runs(
    model: ModelVersion, other: Engine, request: InferRequest, beside: Sequence[InferRequest]
) -> dict[str, Callable[[], list[Tensor]]]:
    """Return the runs whose answers are compared with the answer to the request alone, by name.

    Args:
        beside: Other samples, for the batch.
    """
    spec = model.spec

    def joined(*neighbours: InferRequest, by: ModelVersion = model) -> list[Tensor]:
        return run_batch(by, [request, *neighbours])[0].outputs

    runs: dict[str, Callable[[], list[Tensor]]] = {"run twice": joined}
    if spec.counts_rows:
        varied = [_changed(request, spec, _vary, number) for number in range(1, BATCH)]
        runs[f"in a batch of {BATCH}"] = lambda: joined(*[*beside, *varied][: BATCH - 1])
    if any(entry.lengths for entry in spec.inputs):
        runs["padded beside a row of twice its length"] = lambda: joined(
            _changed(request, spec, _lengthen, 2)
        )
    executor = "inline" if model.config.executor == "process" else "process"
    runs[f"with executor: {executor}"] = lambda: joined(by=other.find(spec.name))
    return runs


Change: TypeAlias = Callable[[Tensor, TensorSpec | None, int], Tensor]


def _changed(request: InferRequest, spec: ModelSpec, change: Change, number: int) -> InferRequest:
    """Return a copy of a request with changed inputs."""
    inputs = [change(tensor, spec.input(tensor.name), number) for tensor in request.inputs]
    return InferRequest(spec.name, spec.version, request.id, inputs, parameters=request.parameters)


def _vary(tensor: Tensor, entry: TensorSpec | None, number: int) -> Tensor:
    """Return an input with other values: noise for an image, else the values in another order, and larger."""
    data = tensor.data
    if isinstance(data, list):
        shape = entry.shape[1:] if entry is not None and entry.image is not None else ()
        sizes = [size for size in shape if isinstance(size, int) and size > 0]
        if entry is None or not sizes or len(sizes) < len(shape):
            return tensor
        noise = np.random.default_rng(number).uniform(0, 255, (len(data), *sizes))
        data = noise.astype(DTYPES[entry.datatype])
        return Tensor(tensor.name, entry.datatype, data.shape, data)
    data = np.roll(data, number, -1) if data.ndim else data
    larger = data * data.dtype.type(number + 1) if data.dtype.kind == "f" else data
    return Tensor(tensor.name, tensor.datatype, tensor.shape, np.ascontiguousarray(larger))


def _lengthen(tensor: Tensor, entry: TensorSpec | None, times: int) -> Tensor:
    """Return an input that is longer in each dimension whose length has a name."""
    if isinstance(tensor.data, list) or entry is None or not entry.lengths:
        return tensor
    data = np.tile(tensor.data, [times if name else 1 for name in entry.lengths])
    return Tensor(tensor.name, tensor.datatype, data.shape, data)


def _difference(alone: Tensor, other: Tensor) -> dict[str, Any]:
    """Return by how much an output differs from the output of the request alone."""
    close, most, found = are_alike(alone, other), 0.0, "is equal"
    if alone.shape != other.shape:
        found = f"has the shape {list(other.shape)}, and {list(alone.shape)} alone"
    elif isinstance(alone.data, list) or isinstance(other.data, list):
        found = "is equal" if close else "differs"
    else:
        first, second = widened(alone.data, alone.datatype), widened(other.data, other.datatype)
        if not np.array_equal(first, second, equal_nan=True):
            wide = first.astype(np.float64)
            with np.errstate(invalid="ignore"):  # infinity minus infinity
                gaps = np.abs(wide - second.astype(np.float64))
            finite = np.isfinite(gaps)
            most, largest = (float(array[finite].max(initial=0)) for array in (gaps, np.abs(wide)))
            found = f"differs by up to {most:.3g}; the largest value is {largest:.3g}"
            if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
                found += "; values that are NaN or infinite differ"
    return {"output": alone.name, "result": found, "difference": most, "ok": close}
