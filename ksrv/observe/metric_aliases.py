"""The metrics once more under the names of other servers, for dashboards that were made for them.

Triton's names are counters of microseconds without `_total`, as its dashboards ask for them; KServe's are
histograms of seconds by stage. A model without versions has the version 1 here, as it has there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ksrv._native.queue.stats import BOUNDS_NS
from ksrv.statistics import ModelStatistics

MetricAliases = Literal["triton", "kserve"]

_KSERVE_STAGES = {
    "preprocess": "request_preprocess_seconds",
    "inference": "request_predict_seconds",
    "postprocess": "request_postprocess_seconds",
}


def exposition(models: Sequence[ModelStatistics], names: Iterable[MetricAliases]) -> bytes:
    """Return the models' metrics as text for the metrics page."""
    lines: list[str] = []
    if "triton" in names:
        lines += _triton(models)
    if "kserve" in names:
        lines += _kserve(models)
    return "".join(f"{line}\n" for line in lines).encode()


def _triton(models: Sequence[ModelStatistics]) -> Iterator[str]:
    families: dict[str, tuple[str, str, list[tuple[ModelStatistics, str, int]]]] = {}

    def add(one: ModelStatistics, name: str, text: str, value: int, more: str = "") -> None:
        kind = "gauge" if name.endswith("pending_request_count") else "counter"
        families.setdefault(name, (kind, text, []))[2].append((one, more, value))

    for one in models:
        success = one.success
        add(one, "request_success", "Requests that were answered", success.count)
        reasons = {
            "REJECTED": sum(one.rejected.values()) + one.expired,
            "CANCELED": one.cancelled,
            "BACKEND": one.failed,
            "OTHER": one.invalid,
        }
        for reason, count in reasons.items():
            more = f',reason="{reason}"'
            add(one, "request_failure", "Requests that were not", count, more)
        add(one, "count", "Rows that were run", one.inference_count)
        add(one, "exec_count", "Batches that were run", one.execution_count)
        add(one, "pending_request_count", "Requests that wait", one.pending)
        spent = {
            "request": success,
            "queue": one.queue,
            "compute_input": one.compute_input,
            "compute_infer": one.compute_infer,
            "compute_output": one.compute_output,
        }
        for part, duration in spent.items():
            text = f"Microseconds of requests, {part.replace('_', ' ')}"
            add(one, f"{part}_duration_us", text, duration.ns // 1000)
    for name, (kind, text, samples) in families.items():
        yield f"# HELP nv_inference_{name} {text}"
        yield f"# TYPE nv_inference_{name} {kind}"
        for one, more, value in samples:
            version = one.version or "1"
            # In the order of their names, as Triton writes them and its tests look for them.
            yield f'nv_inference_{name}{{model="{one.name}"{more},version="{version}"}} {value}'


def _kserve(models: Sequence[ModelStatistics]) -> Iterator[str]:
    bounds = [*(repr(bound / 1e9) for bound in BOUNDS_NS), "+Inf"]
    for stage, name in _KSERVE_STAGES.items():
        yield f"# HELP {name} Seconds of requests in {stage}"
        yield f"# TYPE {name} histogram"
        for model, all_versions in _by_name(models).items():
            times = [one.stages[stage] for one in all_versions if stage in one.stages]
            below = 0
            for index, bound in enumerate(bounds):
                below += sum(one.buckets[index] for one in times)
                yield f'{name}_bucket{{model_name="{model}",le="{bound}"}} {below}'
            yield f'{name}_count{{model_name="{model}"}} {below}'
            yield f'{name}_sum{{model_name="{model}"}} {sum(one.ns for one in times) / 1e9!r}'


def _by_name(models: Sequence[ModelStatistics]) -> dict[str, list[ModelStatistics]]:
    found: dict[str, list[ModelStatistics]] = {}
    for one in models:
        found.setdefault(one.name, []).append(one)
    return found
