"""Prints which lines of the native core were run, by file, from what gcov counted.

    python tools/native_coverage.py build/native/trace [--least 95] [--missing]

Lines of the core's C++ are gcov's. For a .pyx file gcov counts lines of the C++ that Cython made
of it, which names the line of the .pyx before each statement: a line of the .pyx was run when one of
its C++ lines was. C++ that belongs to no line of the .pyx, such as Cython's support code, is not counted.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r'\s*/\* "(ksrv/_native/\w+/\w+\.pyx)":(\d+)$')

Counts = dict[str, dict[int, int]]


def reports(temp: Path) -> Iterator[dict]:
    """Yield gcov's report on every object that was run."""
    for data in sorted(temp.rglob("*.gcda")):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["gcov", "--json-format", str(data.resolve())],
                cwd=folder, check=True, capture_output=True,
            )  # fmt: skip
            for report in Path(folder).glob("*.gcov.json.gz"):
                yield json.loads(gzip.decompress(report.read_bytes()))


def origins(generated: Path) -> dict[int, tuple[str, int]]:
    """Return the .pyx line that each line of a generated C++ file was made of."""
    found: dict[int, tuple[str, int]] = {}
    current = None
    for number, line in enumerate(generated.read_text().splitlines(), 1):
        if mark := MARK.match(line):
            current = mark[1], int(mark[2])
        elif line.startswith("}"):
            current = None  # between functions nothing belongs to a line
        elif current is not None:
            found[number] = current
    return found


def counts(temp: Path) -> Counts:
    """Return how often each countable line was run."""
    total: Counts = {}

    def add(name: str, line: int, times: int) -> None:
        lines = total.setdefault(name, {})
        lines[line] = lines.get(line, 0) + times

    for report in reports(temp):
        built_in = Path(report["current_working_directory"])
        for entry in report["files"]:
            path = (built_in / entry["file"]).resolve()
            if not path.is_relative_to(ROOT):
                continue
            name = path.relative_to(ROOT).as_posix()
            if name.startswith("native/"):
                for line in entry["lines"]:
                    add(name, line["line_number"], line["count"])
            elif name.startswith("build/native/cython-"):
                origin = origins(path)
                for line in entry["lines"]:
                    if line["line_number"] in origin:
                        add(*origin[line["line_number"]], line["count"])
    return total


def ranges(lines: list[int]) -> str:
    """Return line numbers as text: 3-5, 9."""
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def main() -> int:
    """Print the table; 1 if the whole is below `--least`."""
    parser = argparse.ArgumentParser(description="Line coverage of the native core.")
    parser.add_argument("temp", type=Path, help="the build's folder of object files")
    parser.add_argument("--least", type=float, default=0.0, help="percent of all lines")
    parser.add_argument("--missing", action="store_true", help="name the lines that were not run")
    given = parser.parse_args()
    found = counts(given.temp)
    if not found:
        print(f"no counters below {given.temp}: build with KSRV_TRACE=1 and run tests first")
        return 1
    print(f"{'file':<48} {'lines':>6} {'run':>6} {'%':>6}")
    all_lines = all_run = 0
    for name, lines in sorted(found.items()):
        missed = sorted(line for line, times in lines.items() if times == 0)
        run = len(lines) - len(missed)
        all_lines, all_run = all_lines + len(lines), all_run + run
        shown = ranges(missed) if given.missing else ""
        print(
            f"{name:<48} {len(lines):>6} {run:>6} {100 * run / len(lines):>6.1f}  {shown}".rstrip()
        )
    percent = 100 * all_run / all_lines
    print(f"{'all':<48} {all_lines:>6} {all_run:>6} {percent:>6.1f}")
    return 1 if percent < given.least else 0


if __name__ == "__main__":
    sys.exit(main())
