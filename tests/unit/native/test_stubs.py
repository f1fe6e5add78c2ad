"""The stub generator on small modules, and the generated stubs of the core."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def stubs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("native_stubs")


@pytest.fixture
def stub_of(stubs, tmp_path):
    def make(text: str, declarations: str = "") -> str:
        source = tmp_path / "sample.pyx"
        source.write_text(text)
        if declarations:
            source.with_suffix(".pxd").write_text(declarations)
        return stubs.Stub(source).text()

    return make


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "def f(list x) -> None:\n    pass\n",
            "sample.pyx:1: the type of `list x` in f is not known: write its Python type, as in `list x: list[int]`",
        ),
        (
            "\ndef f():\n    pass\n",
            "sample.pyx:2: what f returns is not known: write it, as in `def f(...) -> int:`",
        ),
        (
            "cdef class A:\n    cdef public dict x\n",
            "sample.pyx:2: the type of `dict x` in A is not known: write its Python type, as in "
            "`x: dict[str, int]` in the body of the class in sample.pyx",
        ),
        (
            "cdef class A:\n    x: int\n",
            "sample.pyx:2: A.x has a type and is no `cdef public` or `cdef readonly` attribute: declare it",
        ),
        (
            "def f(x: Missing) -> None:\n    pass\n",
            "sample.pyx:1: Missing in the type Missing is unknown: import it under `if not cython.compiled:`",
        ),
    ],
)
def test_unknown_type_stops_the_build(stubs, stub_of, text, sentence, tmp_path):
    with pytest.raises(stubs.BuildFailed) as raised:
        stub_of(text)
    assert str(raised.value).replace(f"{tmp_path}/", "") == sentence


def test_module_that_is_not_cython_stops_the_build(stubs, stub_of, capfd):
    with pytest.raises(stubs.BuildFailed, match=r"sample\.pyx is no valid Cython"):
        stub_of("def f(:\n")


def test_stubs_are_written_once_and_without_their_module_removed(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr(stubs, "MODULES", tmp_path)
    source, left = tmp_path / "a" / "one.pyx", tmp_path / "a" / "other.pyi"
    source.parent.mkdir()
    source.write_text("X = 1\n")
    left.write_text("")
    [stub] = stubs.write_stubs()
    assert stub.read_text().endswith("X: int\n")
    assert not left.exists()
    stub.write_text("kept")
    assert stubs.write_stubs() == [stub]
    assert stub.read_text() == "kept"


MODULES = sorted(
    path.relative_to(ROOT).with_suffix("") for path in (ROOT / "ksrv/_native").rglob("*.pyx")
)


def declared_in(stub: ast.Module | ast.ClassDef) -> set[str]:
    names = set()
    for node in stub.body:
        if isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def imported_in(source: Path) -> set[str]:
    """Return the names that a module imports, which its stub must not export."""
    lines = source.read_text().splitlines()
    return {
        word.strip("(),")
        for line in lines
        if line.startswith(("import ", "from ")) and "cimport" not in line
        for word in line.split()
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_every_public_name_is_in_the_stub(module: Path):
    source = ROOT / module.with_suffix(".pyx")
    stub = ast.parse(source.with_suffix(".pyi").read_text())
    loaded = importlib.import_module(".".join(module.parts))
    public = {name for name in vars(loaded) if not name.startswith("_")}
    assert public - imported_in(source) <= declared_in(stub)
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and hasattr(loaded, node.name):
            kind = getattr(loaded, node.name)
            own = {name for name in vars(kind) if not name.startswith("_")}
            assert own <= declared_in(node), node.name
            later = vars(kind).get(
                "__annotations__", {}
            )  # exceptions set these when they are created
            for name in declared_in(node) - {"__init__", "__buffer__", *later}:
                assert inspect.getattr_static(kind, name, None) is not None, (node.name, name)
