"""The metrics once more under Triton's names, for dashboards that were made for them.

They are counters of microseconds without `_total`. A model without versions has the version 1 here, as in Triton.
"""

from collections.abc import Iterator, Sequence

from ksrv.statistics import ModelStatistics


def metric_lines(models: Sequence[ModelStatistics]) -> Iterator[str]:
    """Yield the lines of the models' metrics; see `Dialect.metric_lines`."""
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
