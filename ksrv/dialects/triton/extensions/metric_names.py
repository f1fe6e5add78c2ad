"""Writes the metrics of models a second time under Triton's names, for dashboards that expect these names.

As in Triton, times are counters of microseconds, names do not end with `_total`, and a model without versions has the
version 1.
"""

from collections.abc import Iterator, Sequence

from ksrv.statistics import ModelStatistics


def metric_lines(models: Sequence[ModelStatistics]) -> Iterator[str]:
    """Yield the lines of the models' metrics; see `Dialect.metric_lines`."""
    families: dict[str, tuple[str, str, list[tuple[ModelStatistics, str, int]]]] = {}

    def add(model: ModelStatistics, name: str, text: str, value: int, more: str = "") -> None:
        kind = "gauge" if name.endswith("pending_request_count") else "counter"
        families.setdefault(name, (kind, text, []))[2].append((model, more, value))

    for model in models:
        success = model.success
        add(model, "request_success", "Requests that were answered", success.count)
        reasons = {
            "REJECTED": sum(model.rejected.values()) + model.expired,
            "CANCELED": model.cancelled,
            "BACKEND": model.failed,
            "OTHER": model.invalid,
        }
        for reason, count in reasons.items():
            more = f',reason="{reason}"'
            add(model, "request_failure", "Requests that were not", count, more)
        add(model, "count", "Rows that were run", model.inference_count)
        add(model, "exec_count", "Batches that were run", model.execution_count)
        add(model, "pending_request_count", "Requests that wait", model.pending)
        spent = {
            "request": success,
            "queue": model.queue,
            "compute_input": model.compute_input,
            "compute_infer": model.compute_infer,
            "compute_output": model.compute_output,
        }
        for part, duration in spent.items():
            text = f"Microseconds of requests, {part.replace('_', ' ')}"
            add(model, f"{part}_duration_us", text, duration.ns // 1000)
    for name, (kind, text, samples) in families.items():
        yield f"# HELP nv_inference_{name} {text}"
        yield f"# TYPE nv_inference_{name} {kind}"
        for model, more, value in samples:
            version = model.version or "1"
            # Labels are in the order of their names, because Triton's tests compare whole lines.
            yield f'nv_inference_{name}{{model="{model.name}"{more},version="{version}"}} {value}'
