"""One line of the report of `ksrv doctor`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "note", "slow", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "ok"; "note": good to know; "slow": costs speed; "wrong": something does not work.
        subject: The thing that was examined, such as "memory".
        found: The state of the subject on this machine.
        means: The consequence for ksrv, or "".
        do: The remedy, or "".
    """

    level: Level
    subject: str
    found: str
    means: str = ""
    do: str = ""


def judged(fine: bool, subject: str, found: str, level: Level, means: str, do: str) -> Finding:
    """Return the finding "ok" if `fine`, else a finding of `level` with its consequence and remedy."""
    return Finding("ok", subject, found) if fine else Finding(level, subject, found, means, do)
