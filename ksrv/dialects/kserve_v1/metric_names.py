"""Repeats the models' metrics under KServe's names: a histogram of seconds for each stage."""

from collections.abc import Iterator, Sequence

from ksrv._native.queue.stats import BOUNDS_NS
from ksrv.statistics import ModelStatistics

# ksrv's stages, and KServe's names of their histograms.
STAGES = {
    "preprocess": "request_preprocess_seconds",
    "inference": "request_predict_seconds",
    "postprocess": "request_postprocess_seconds",
}


def metric_lines(models: Sequence[ModelStatistics]) -> Iterator[str]:
    """Yield the lines of the models' metrics; see `Dialect.metric_lines`."""
    bounds = [*(repr(bound / 1e9) for bound in BOUNDS_NS), "+Inf"]
    for stage, name in STAGES.items():
        yield f"# HELP {name} Seconds of requests in {stage}"
        yield f"# TYPE {name} histogram"
        for model, all_versions in _by_name(models).items():
            times = [version.stages[stage] for version in all_versions if stage in version.stages]
            below = 0  # Prometheus's buckets are cumulative
            for index, bound in enumerate(bounds):
                below += sum(time.buckets[index] for time in times)
                yield f'{name}_bucket{{model_name="{model}",le="{bound}"}} {below}'
            yield f'{name}_count{{model_name="{model}"}} {below}'
            yield f'{name}_sum{{model_name="{model}"}} {sum(time.ns for time in times) / 1e9!r}'


def _by_name(models: Sequence[ModelStatistics]) -> dict[str, list[ModelStatistics]]:
    """Return the versions of each model. KServe's metrics have no label for the version."""
    found: dict[str, list[ModelStatistics]] = {}
    for model in models:
        found.setdefault(model.name, []).append(model)
    return found
