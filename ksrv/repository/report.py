"""The report on the settings of another server's model: which keys ksrv applies, ignores and refuses."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """How the keys of another server's settings are handled.

    Attributes:
        applied: Keys that ksrv applies, with their meaning.
        ignored: Keys that change nothing, with the reason.
        refused: Keys that keep the model from being served, with the reason.
    """

    applied: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report as text, one fact a line."""
        return [
            *(f"{key}: {meaning}" for key, meaning in self.applied.items()),
            *self._ignored_lines(),
            *(f"{key}: REFUSED, {reason}" for key, reason in self.refused.items()),
        ]

    def log(self, log: logging.Logger, subject: str) -> None:
        """Log the ignored keys as a warning, and the others as information."""
        ignored = self._ignored_lines()
        others = [line for line in self.lines() if line not in ignored]
        for level, lines in ((logging.INFO, others), (logging.WARNING, ignored)):
            if lines:
                log.log(level, "%s: %s", subject, "; ".join(lines))

    def _ignored_lines(self) -> list[str]:
        return [f"{key}: ignored, {reason}" for key, reason in self.ignored.items()]

    def refusals(self) -> str:
        """Return the keys that are refused with their reasons, or ""."""
        return "; ".join(f"{key}: {reason}" for key, reason in self.refused.items())


def reasons_for(section: object, reasons: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return the entries of a report for the keys that a section has and that are not empty.

    Args:
        section: The keys as attributes.
        reasons: The reason for each key that may be reported.
        prefix: Put in front of each key, such as "dynamic_batching.".
    """
    return {f"{prefix}{key}": why for key, why in reasons.items() if getattr(section, key, None)}
