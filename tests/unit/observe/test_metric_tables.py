"""The tables of metrics, and the documents, dashboards and alerts that name metrics."""

import re
from pathlib import Path

from ksrv._native.reactor.counters import REFUSALS
from ksrv.observe import metrics
from ksrv.observe.process import ProcessValues, ServerValues
from ksrv.observe.traffic import Traffic
from ksrv.statistics import LazyCounts, ModelStatistics, SampledCounts, rows

ROOT = Path(__file__).parents[3]
PAGES = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
KINDS = (ModelStatistics, SampledCounts, Traffic, ProcessValues, LazyCounts, ServerValues)
HISTOGRAMS = {metrics.DURATIONS, metrics.STAGE_DURATIONS, "ksrv_batch_size"}


def shown():
    """The names of the metrics on the page, as Prometheus reads them."""
    found = [metrics.OUTCOMES, metrics.READY, metrics.UNKNOWN, metrics.REFUSED, metrics.BUILD]
    for kind in KINDS:
        found += [row for some in rows(kind).values() for row in some]
    return HISTOGRAMS | {row.name if row.present else f"{row.name}_total" for row in found}


def test_each_metric_has_one_row():
    found = [metrics.OUTCOMES.name]
    for kind in KINDS:
        found += [row.name for some in rows(kind).values() for row in some]
    assert len(set(found)) == len(found)


def test_each_metric_is_documented():
    text = "".join(PAGES.values())
    assert [name for name in shown() if not re.search(rf"\b{name}", text)] == []


def test_each_reason_of_a_refusal_is_documented():
    text = PAGES[ROOT / "docs/metrics.md"]
    assert [name for name in REFUSALS if f"`{name}`" not in text] == []
