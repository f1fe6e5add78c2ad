"""The report on another server's settings: what becomes of each of its keys here."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What becomes of the keys of another server's settings.

    Attributes:
        applied: Keys that hold here too, with their meaning.
        ignored: Keys that change nothing, with the reason.
        refused: Keys that keep the model from being served, with the reason.
    """

    applied: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report as text, one fact a line."""
        text = [f"{key}: {meaning}" for key, meaning in self.applied.items()]
        text += [f"{key}: ignored, {reason}" for key, reason in self.ignored.items()]
        text += [f"{key}: REFUSED, {reason}" for key, reason in self.refused.items()]
        return text

    def refusals(self) -> str:
        """Return the keys that are refused with their reasons, "" where there are none."""
        return "; ".join(f"{key}: {reason}" for key, reason in self.refused.items())
