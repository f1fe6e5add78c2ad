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


def test_what_is_above_twice_is_worse() -> None:
    count = Counted({"REST": 20_800, "gRPC": 40_100}, {"REST": 20_700})
    assert worse(count, ["REST", "gRPC"], BEFORE) == ["REST"]
    assert count.asked == [["REST", "gRPC"], ["REST"]]


def test_what_was_above_by_chance_passes() -> None:
    assert worse(Counted({"REST": 20_800, "gRPC": 41_300}, {"REST": 20_100, "gRPC": 41_300}),
                 ["REST", "gRPC"], BEFORE) == ["gRPC"]  # fmt: skip
    assert not worse(Counted({"REST": 20_800}, {"REST": 20_100}), ["REST"], BEFORE)


def test_what_is_below_is_counted_once() -> None:
    count = Counted({"REST": 20_000, "gRPC": 40_000})
    assert not worse(count, ["REST", "gRPC"], BEFORE)
    assert len(count.asked) == 1


def test_a_path_that_the_baseline_lacks_is_no_better() -> None:
    assert worse(Counted({"new": 1}, {"new": 1}), ["new"], BEFORE) == ["new"]
