"""The code of ksrv/ and native/ does not grow: a change that adds code removes as much first."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The budget of the house: whoever needs more deletes first.
CORE_LINES = 54_500
ALL_LINES = 71_930
# Lines that each of these folders and files may have on top of ALL_LINES.
ALLOWANCES = {
    "ksrv/dialects/mlflow/": 900,
    "ksrv/dialects/mlserver/": 900,
    "ksrv/dialects/tabular/": 900,
    "ksrv/dialects/tfserving/": 900,
    "ksrv/pull/": 450,
    "ksrv/cli/signature.py": 50,
    "ksrv/shadow/": 350,
}

OUTSIDE_THE_CORE = (
    "ksrv/dialects/",
    "ksrv/cli/signature.py",
    "ksrv/client/",
    "ksrv/bench/",
    "ksrv/pull/",
    "ksrv/ray/",
    "ksrv/shadow/",
    "ksrv/server/page/",
)
PYTHON = {".py", ".pyx", ".pxd", ".pyi"}
OTHERS = {".cpp", ".hpp", ".h", ".c", ".js", ".css"}


def python_lines(text: str) -> int:
    """Return the lines of code of a Python or Cython file: no comments, docstrings or blanks."""
    lines, skipped = text.split("\n"), set()
    try:
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            for one in body if isinstance(body, list) else ():
                value = one.value if isinstance(one, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    skipped.update(range(one.lineno, one.end_lineno + 1))
    except SyntaxError:  # Cython
        inside = False
        for number, line in enumerate(lines, 1):
            mark = line.strip().startswith('"""')
            if inside or mark:
                skipped.add(number)
                if mark and not inside:
                    inside = line.count('"""') == 1
                elif '"""' in line:
                    inside = False
    code = (line.strip() for number, line in enumerate(lines, 1) if number not in skipped)
    return sum(1 for line in code if line and not line.startswith("#"))


def c_lines(text: str) -> int:
    """Return the lines of code of a C++, JavaScript or CSS file: no comments or blanks."""
    count, inside = 0, False
    for line in map(str.strip, text.split("\n")):
        if inside or line.startswith("/*"):
            inside = "*/" not in line
        elif line and not line.startswith("//"):
            count += 1
    return count


def code_lines(name: str) -> int:
    path = ROOT / name
    if path.suffix not in PYTHON | OTHERS:
        return 0
    text = path.read_text(encoding="utf-8")
    return python_lines(text) if path.suffix in PYTHON else c_lines(text)


def test_the_code_stays_within_its_budget():
    if not (ROOT / ".git").exists():
        pytest.skip("the listing is git's, and this is not a checkout")
    listing = subprocess.run(
        ["git", "ls-files", "ksrv", "native"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    counts = {name: code_lines(name) for name in listing if (ROOT / name).is_file()}
    core = sum(n for name, n in counts.items() if not name.startswith(OUTSIDE_THE_CORE))
    assert core <= CORE_LINES, f"the core has {core:,} lines of code, and may have {CORE_LINES:,}"
    for folder, most in ALLOWANCES.items():
        lines = sum(n for name, n in counts.items() if name.startswith(folder))
        assert lines <= most, f"{folder} has {lines:,} lines of code, and may have {most:,}"
    total, most = sum(counts.values()), ALL_LINES + sum(ALLOWANCES.values())
    assert total <= most, f"ksrv has {total:,} lines of code, and may have {most:,}"
