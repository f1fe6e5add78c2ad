"""Prints the native core's promises as one table: each beside its limit, with target and verdict.

    python benchmarks/core/ratios.py benchmarks/results/core.json [--all] [--json PATH]

The ratio divides the least time of a way by the least time of its limit, because other work of the machine disturbs the
least time least. A missed target is printed, but the script does not fail: times depend on the machine. A row whose
benchmark did not run has a note. `--all` adds every timing, `--json` writes the rows for other programs.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

WAYS = ("way", "reader", "writer")


@dataclass(frozen=True)
class Target:
    """`way` takes at most `most` times as long as `other`, in the groups that match `pattern`.

    Without `other`, `way` takes at most `most` seconds.
    """

    row: str
    pattern: str
    way: str
    other: str
    most: float


@dataclass(frozen=True)
class Verdict:
    """One target in one group."""

    row: str
    group: str
    way: str
    other: str
    seconds: float
    ratio: float
    most: float
    met: bool


BODY = "body: header split, JSON header, offsets, views"
ELEMENTS = "elements: BYTES decode, encode"
SCAN, RESPONSE = "message: scan ModelInferRequest", "message: write the response"
NUMBERS = "JSON numbers in"
PHOTOGRAPHS = "image: 8 JPEGs 640x427 -> 224x224, 1 thread"
THREADS = "the same, 2 threads"
LARGE = "image: 12 MP -> 224, reduced"
NORMALISE = "pixels: u8 NHWC -> f32, mean and std"
PILLOW = "pixels: Pillow-exact bilinear resize"
QUEUE = "queue: take, start, finish and push a batch of 32"
BOMB = "refusal of a decompression bomb"

TARGETS = (
    Target(BODY, "body 602 KB", "ksrv", "msgspec", 0.8),
    Target(BODY, "body 602 KB", "ksrv", "json + slices", 1 / 5),
    Target(ELEMENTS, "elements decode *", "ksrv", "python", 1 / 4),
    Target(ELEMENTS, "elements decode *", "ksrv", "tritonclient", 1 / 10),
    Target(ELEMENTS, "elements encode *", "ksrv", "python", 1 / 10),
    Target(ELEMENTS, "elements encode *", "ksrv", "tritonclient", 1 / 10),
    Target(SCAN, "message scan 602 KB *", "ksrv", "upb", 1 / 10),
    Target(RESPONSE, "message response 602112 bytes *", "ksrv", "upb", 1 / 4),
    Target(NUMBERS, "JSON in: *", "ksrv", "pysimdjson", 1.3),
    Target(NUMBERS, "JSON in: *", "ksrv", "orjson + np.array", 1 / 2),
    Target(PHOTOGRAPHS, "image: 8 JPEGs *", "ksrv", "limit", 0.97),
    Target(THREADS, "image: 8 JPEGs *", "ksrv-2-threads", "ksrv", 0.60),
    Target(LARGE, "image: 12 MP *", "reduced", "limit", 0.6),
    # The share of the library: only its scaled decode, without the resize to 224.
    Target(LARGE, "image: 12 MP *", "reduced", "library reduced", 1.1),
    Target(NORMALISE, "pixels: u8 *", "fast", "limit", 1.6),
    Target(NORMALISE, "pixels: u8 *", "exact", "limit", 6.0),
    Target(PILLOW, "pixels: Pillow*", "ksrv", "pillow", 1.0),
    Target(QUEUE, "queue: a batch of 32, *", "10,000 waiting", "32 waiting", 2.0),
    # A refusal has no alternative: it must be quick as such.
    Target(BOMB, "image: header check*", "bomb", "", 50e-6),
)


def read(path: Path) -> dict[str, dict[str, float]]:
    """Return the least seconds by group and way."""
    groups: dict[str, dict[str, float]] = {}
    for entry in json.loads(path.read_text())["benchmarks"]:
        parameters = entry["params"] or {}
        way = next((parameters[name] for name in WAYS if name in parameters), entry["name"])
        groups.setdefault(entry["group"] or entry["name"], {})[way] = entry["stats"]["min"]
    return groups


def shown(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def verdicts(groups: dict[str, dict[str, float]]) -> Iterator[Verdict | Target]:
    """Yield the verdict on each target, or the target if nothing was measured for it."""
    for target in TARGETS:
        found = False
        for group, ways in groups.items():
            if not fnmatchcase(group, target.pattern) or target.way not in ways:
                continue
            if target.other and target.other not in ways:
                continue
            seconds = ways[target.way]
            ratio = seconds / ways[target.other] if target.other else seconds
            found = True
            yield Verdict(
                target.row, group, target.way, target.other, seconds, ratio, target.most,
                ratio <= target.most,
            )  # fmt: skip
        if not found:
            yield target


def line(verdict: Verdict | Target) -> tuple[str, ...]:
    """Return one row of the table."""
    if isinstance(verdict, Target):
        return verdict.row, verdict.pattern, verdict.way, "", "", "", "NOT MEASURED"
    if verdict.other:
        ratio, most = f"{verdict.ratio:.2f} x {verdict.other}", f"<= {verdict.most:.2f}"
    else:
        ratio, most = "", f"<= {shown(verdict.most)}"
    outcome = "ok" if verdict.met else "MISSED"
    time = shown(verdict.seconds)
    return verdict.row, verdict.group, verdict.way, time, ratio, most, outcome


def show(table: list[tuple[str, ...]]) -> None:
    """Print a table; a first column that repeats is left blank."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    previous = ""
    for row in table:
        cells = [row[0] if row[0] != previous else "", *row[1:]]
        previous = row[0]
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Targets of the native core and their verdicts.")
    parser.add_argument("result", type=Path, help="the JSON that pytest-benchmark wrote")
    parser.add_argument("--all", action="store_true", help="print every timing as well")
    parser.add_argument("--json", type=Path, help="write the verdicts here")
    given = parser.parse_args()
    groups = read(given.result)
    found = list(verdicts(groups))
    show([("row", "case", "way", "time", "ratio", "target", ""), *map(line, found)])
    if given.json:
        measured = [asdict(verdict) for verdict in found if isinstance(verdict, Verdict)]
        given.json.write_text(json.dumps(measured, indent=1) + "\n")
    if given.all:
        print()
        timings = [
            (group, way, shown(seconds))
            for group, ways in groups.items()
            for way, seconds in ways.items()
        ]
        show([("group", "way", "time"), *timings])


if __name__ == "__main__":
    main()
