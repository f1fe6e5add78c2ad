"""The tables of metrics, and the documents, dashboards and alerts that name metrics."""

import re
from pathlib import Path

from ksrv._native.reactor.counters import REFUSALS
from ksrv.observe import metrics
from ksrv.observe.process import ProcessValues, ServerValues
from ksrv.observe.traffic import Traffic
from ksrv.statistics import LazyCounts, ModelStatistics, rows

ROOT = Path(__file__).parents[3]
PAGES = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
OBSERVABILITY = [
    path for path in (ROOT / "deploy/observability").iterdir() if path.suffix in (".json", ".yaml")
]
HISTOGRAMS = {metrics.DURATIONS, metrics.STAGE_DURATIONS, "ksrv_batch_size"}


def shown():
    """The names of the metrics on the page, as Prometheus reads them."""
    found = [metrics.OUTCOMES, metrics.READY, metrics.UNKNOWN, metrics.REFUSED, metrics.BUILD]
    for kind in (ModelStatistics, Traffic, ProcessValues, LazyCounts, ServerValues):
        found += [row for some in rows(kind).values() for row in some]
    names = {row.name if row.present else f"{row.name}_total" for row in found}
    return names | {f"{name}{end}" for name in HISTOGRAMS for end in ("_bucket", "_count", "_sum")}


def test_each_metric_has_one_row():
    found = [metrics.OUTCOMES.name]
    for kind in (ModelStatistics, Traffic, ProcessValues, LazyCounts, ServerValues):
        found += [row.name for some in rows(kind).values() for row in some]
    assert len(set(found)) == len(found)


def test_each_metric_is_documented():
    text = "".join(PAGES.values())
    missing = [
        name
        for name in shown()
        if not re.search(rf"\b{re.sub('_(bucket|count|sum)$', '', name)}", text)
    ]
    assert not missing


def test_each_reason_of_a_refusal_is_documented():
    text = PAGES[ROOT / "docs/protocol.md"]
    assert [name for name in REFUSALS if f"`{name}`" not in text] == []


def test_dashboards_and_alerts_name_metrics_that_exist():
    for path in OBSERVABILITY:
        named = set(re.findall(r"\bksrv_\w+", path.read_text()))
        assert named, path
        assert named <= shown() | {"ksrv_metrics"}, path
