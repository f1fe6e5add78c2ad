"""A client's inference takes one road, as docs/internals/index.md says: only `ksrv.server.call` asks the engine for it."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "ksrv"
FRONT_ENDS = ("server", "dialects", "ray")
ROAD = "server/call.py"
OTHER_SUBJECTS = {
    "dialects/torchserve/routes/archives.py": "find: describes archives, and sets a default version",
}
"""Modules that ask for a model without a client's inference."""


def engine_calls(source: str) -> Iterator[str]:
    """Yield `find` and `submit` for each place that takes them from an engine."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("find", "submit", "infer"):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name.lstrip("_") == "engine":
                yield node.attr


@functools.cache
def modules_by_call() -> dict[str, set[str]]:
    """Return the modules of the front ends that use each function of the engine."""
    found: dict[str, set[str]] = {}
    for folder in FRONT_ENDS:
        for path in (ROOT / folder).rglob("*.py"):
            for call in engine_calls(path.read_text()):
                found.setdefault(call, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_one_module_finds_models_and_submits_requests():
    modules = modules_by_call()
    assert modules["submit"] == {ROAD}
    assert modules["find"] - OTHER_SUBJECTS.keys() == {ROAD}
    assert "infer" not in modules


def test_every_exception_asks_the_engine():
    assert modules_by_call()["find"] >= OTHER_SUBJECTS.keys()


def test_calls_of_an_engine_are_found_whatever_holds_it():
    source = "engine.submit(1)\nself._engine.find(2)\na.engine.infer\nother.find(3)\n"
    assert sorted(engine_calls(source)) == ["find", "infer", "submit"]
