"""The verdicts of `make guard`, on made-up counts."""

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.guard.comparison import above, worse

BEFORE = {"REST": 20_000, "gRPC": 40_000}


class Counted:
    """Returns a series of counts, and records the requested names."""

    def __init__(self, *counts: Mapping[str, int]) -> None:
        self._counts = iter(counts)
        self.asked: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> dict[str, int]:
        self.asked.append(list(names))
        counted = next(self._counts)
        return {name: counted[name] for name in names}


@pytest.mark.parametrize(
    ("instructions", "named"),
    [(20_000, []), (15_000, []), (20_600, []), (20_601, ["REST"]), (40_000, ["REST"])],
)
def test_three_percent_are_allowed(instructions: int, named: list[str]) -> None:
    assert above({"REST": instructions, "gRPC": 40_000}, BEFORE) == named


def test_count_above_the_limit_twice_fails() -> None:
    count = Counted({"REST": 20_800, "gRPC": 40_100}, {"REST": 20_700})
    assert worse(count, ["REST", "gRPC"], BEFORE) == ["REST"]
    assert count.asked == [["REST", "gRPC"], ["REST"]]


def test_count_above_the_limit_once_passes() -> None:
    assert worse(Counted({"REST": 20_800, "gRPC": 41_300}, {"REST": 20_100, "gRPC": 41_300}),
                 ["REST", "gRPC"], BEFORE) == ["gRPC"]  # fmt: skip
    assert not worse(Counted({"REST": 20_800}, {"REST": 20_100}), ["REST"], BEFORE)


def test_count_below_the_limit_is_measured_once() -> None:
    count = Counted({"REST": 20_000, "gRPC": 40_000})
    assert not worse(count, ["REST", "gRPC"], BEFORE)
    assert len(count.asked) == 1


def test_path_missing_in_the_baseline_is_not_an_improvement() -> None:
    assert worse(Counted({"new": 1}, {"new": 1}), ["new"], BEFORE) == ["new"]
