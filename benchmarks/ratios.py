"""Prints every benchmark row beside its alternative as a ratio, with the target where there is one.

    python benchmarks/ratios.py benchmarks/results/core.json

The ratio is the least time of a way divided by that of the way it is compared with: on a machine with
other work the least time is the one that was least disturbed. A missed target is said and is no
failure; times depend on the machine, and nothing is asserted about them.
"""

import argparse
import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

WAYS = ("way", "reader", "writer")


@dataclass(frozen=True)
class Target:
    """`way` takes at most `most` times as long as `other`, in the groups that match `pattern`."""

    pattern: str
    way: str
    other: str
    most: float


TARGETS = (
    Target("body 602 KB", "ksrv", "msgspec", 0.8),
    Target("body 602 KB", "ksrv", "json + slices", 1 / 5),
    Target("elements decode *", "ksrv", "python", 1 / 4),
    Target("elements decode *", "ksrv", "tritonclient", 1 / 10),
    Target("elements encode *", "ksrv", "python", 1 / 10),
    Target("elements encode *", "ksrv", "tritonclient", 1 / 10),
    Target("message scan 602 KB *", "ksrv", "upb", 1 / 10),
    Target("message response 602112 bytes", "ksrv", "upb", 1 / 4),
    Target("JSON in: *", "ksrv", "pysimdjson", 1.3),
    Target("JSON in: *", "ksrv", "orjson + np.array", 1 / 2),
    Target("image: 8 JPEGs *", "ksrv", "limit", 1.25),
    Target("image: 8 JPEGs *", "ksrv-2-threads", "ksrv", 0.60),
    Target("image: 12 MP *", "reduced", "limit", 0.6),
    Target("pixels: u8 *", "fast", "limit", 1.6),
    Target("pixels: u8 *", "exact", "limit", 6.0),
    Target("pixels: Pillow*", "ksrv", "pillow", 1.0),
)
# A refusal has no alternative: it must be quick as such.
SECONDS = {("image: header check*", "bomb"): 50e-6}


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


def rows(groups: dict[str, dict[str, float]]) -> list[tuple[str, str, str, str, str, str]]:
    """Return the table's rows: group, way, time, ratio, target, verdict."""
    found = []
    for group, ways in groups.items():
        for way, seconds in ways.items():
            lines = []
            for target in TARGETS:
                if (
                    fnmatchcase(group, target.pattern)
                    and target.way == way
                    and target.other in ways
                ):
                    ratio = seconds / ways[target.other]
                    verdict = "ok" if ratio <= target.most else "MISSED"
                    lines.append(
                        (f"{ratio:.2f} x {target.other}", f"<= {target.most:.2f}", verdict)
                    )
            for (pattern, refused), most in SECONDS.items():
                if fnmatchcase(group, pattern) and way == refused:
                    verdict = "ok" if seconds <= most else "MISSED"
                    lines.append(("", f"<= {shown(most)}", verdict))
            for line in lines or [("", "", "")]:
                found.append((group, way, shown(seconds), *line))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Ratios of a pytest-benchmark result.")
    parser.add_argument("result", type=Path, help="the JSON that pytest-benchmark wrote")
    table = [
        ("group", "way", "time", "ratio", "target", ""),
        *rows(read(parser.parse_args().result)),
    ]
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    previous = ""
    for row in table:
        group = row[0] if row[0] != previous else ""
        cells = [group, *row[1:]]
        print(
            "  ".join(
                f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)
            ).rstrip()
        )
        previous = row[0]


if __name__ == "__main__":
    main()
