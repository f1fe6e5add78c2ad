"""All statistics of one worker, and their sum over several workers for the metrics page."""

from collections.abc import Sequence

import msgspec

from ksrv.observe.handler_metrics import Family, add_families
from ksrv.observe.process import ProcessValues
from ksrv.observe.traffic import Traffic
from ksrv.statistics import LazyCounts, ModelStatistics, summed


class WorkerStatistics(msgspec.Struct):
    """The statistics of one worker, or the sums of several.

    Attributes:
        models: The statistics of each model version.
        unknown: How many requests named an unknown model or version.
        process: The memory of the process.
        traffic: Connections, refusals and error answers.
        handlers: The values that handlers report, by name.
        refused: See `Engine.refused_replacements`.
        lazy: Counts of models that requests load; None if all are loaded at the start.
    """

    models: list[ModelStatistics] = []
    unknown: int = 0
    process: ProcessValues = msgspec.field(default_factory=ProcessValues)
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    handlers: dict[str, Family] = {}
    refused: dict[str, int] = {}
    lazy: LazyCounts | None = None

    def add(self, other: "WorkerStatistics", *, lives: bool) -> None:
        """Add another worker's statistics; model versions that are not in `models` are left out.

        Args:
            lives: Whether that worker still runs. Of a dead worker only the counters are added, not the present values.
        """
        add_models(self.models, other.models, lives=lives)
        self.unknown += other.unknown
        self.process.add(other.process, lives=lives)
        self.traffic.add(other.traffic, lives=lives)
        add_families(self.handlers, other.handlers)
        self.refused = summed(self.refused, other.refused)
        if self.lazy is not None and other.lazy is not None:
            self.lazy.add(other.lazy, lives=lives)


def add_models(
    mine: Sequence[ModelStatistics], others: Sequence[ModelStatistics], *, lives: bool
) -> None:
    """Add another worker's statistics of the same model versions."""
    by_name = {(model.name, model.version): model for model in mine}
    for other in others:
        if (model := by_name.get((other.name, other.version))) is not None:
            model.add(other, lives=lives)
