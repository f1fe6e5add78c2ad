"""tools/plain_english.py finds banned constructs in comments, messages and documents, and nothing in code."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools/plain_english.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("plain_english", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found_lines(tool, path: Path, text: str) -> list[int]:
    path.write_text(text)
    return [number for number, _, _ in tool.faults(path)]


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", "x = 1  # the last one wins\ny = 2\n", [1]),
        ("b.py", 'def f():\n    """Do it.\n\n    Where it fails, stop.\n    """\n', [4]),
        ("c.py", 'raise ValueError("there is no model of this name")\n', [1]),
        ("d.py", 'raise ValueError(f"there is no model {name!r} here")\n', [1]),
        (
            "j.py",
            '"""The rules are those of\nanother page. The fields of a\nform are few."""\n',
            [1],
        ),
        ("e.py", "those_of = ones = whatever\nCODE = 'x = numpy.ones(3)'\n", []),
        ("f.cpp", "int x; // It lies on the heap.\n/* a\n   the last one\n*/\nint ones;\n", [1, 3]),
        ("g.pyx", 'cdef int x  # stands in C\n"""\nThe caller is told.\n"""\n', [1, 3]),
        ("h.md", "# What counts\nThe other one.\n```\nthe other one\n```\n`the other one`\n", [2]),
        ("i.py", "# Is this where it fails?\n# Where does it fail?\n", []),
    ],
)
def test_banned_constructs_are_found_in_text_and_not_in_code(tool, tmp_path, name, text, lines):
    assert found_lines(tool, tmp_path / name, text) == lines


def test_marked_line_is_kept(tool, tmp_path):
    assert not found_lines(tool, tmp_path / "a.py", "# the last one (plain-english: keep)\n")
