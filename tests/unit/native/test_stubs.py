"""The stub generator on small modules, and the generated stubs of the core."""

import importlib

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
    with pytest.raises(stubs.BuildFailed, match=r"sample\.pyx is not valid Cython"):
        stub_of("def f(:\n")


def test_stubs_are_written_once_and_without_their_module_removed(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr(stubs, "MODULES", (tmp_path,))
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
