"""Regular expressions use only features that all supported versions of Python implement correctly."""

import ast
import re
from pathlib import Path

import ksrv

SOURCES = Path(ksrv.__file__).parent
FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "subn", "finditer", "findall", "split"}  # fmt: skip


def patterns(source):
    for node in ast.walk(ast.parse(source)):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not called or node.func.attr not in FUNCTIONS or not node.args:
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                    yield part.value


def has_possessive_group(pattern):
    try:
        parsed = str(re._parser.parse(pattern))
    except re.error:  # a part of a pattern that is joined at run time
        return re.search(r"[*+?}]\+|\(\?>", str(pattern)) is not None
    return "POSSESSIVE_REPEAT" in parsed or "ATOMIC_GROUP" in parsed


def test_no_pattern_has_possessive_groups():
    """Python before 3.11.5 matches some possessive groups wrongly (gh-106052), so that malformed headers were
    accepted."""
    assert has_possessive_group(r"(?:a|b)?+") and has_possessive_group(rb"(?>a)x")
    found = {
        (path.relative_to(SOURCES), pattern)
        for path in SOURCES.rglob("*.py")
        for pattern in patterns(path.read_text())
    }
    assert len(found) > 50
    assert not [(str(path), text) for path, text in found if has_possessive_group(text)]
