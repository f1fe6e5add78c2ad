"""One line of the report of `ksrv doctor`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "note", "slow", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "ok"; "note": good to know; "slow": costs speed; "wrong": something does not work.
        subject: The thing that was looked at.
        found: Its state here.
        means: The consequence for ksrv, or "".
        do: How to change it, or "".
    """

    level: Level
    subject: str
    found: str
    means: str = ""
    do: str = ""


def judged(fine: bool, subject: str, found: str, level: Level, means: str, do: str) -> Finding:
    """Return the finding "ok" if `fine`, else a finding of `level` with its consequence and remedy."""
    return Finding("ok", subject, found) if fine else Finding(level, subject, found, means, do)
