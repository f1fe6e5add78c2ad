"""The stub generator on small modules, and the generated stubs of the core."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCE = '''
# A comment.
"""A module."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

cimport cython
from libc.stdint cimport uint64_t

from ksrv._native.tensor.tensor cimport Tensor, ksrv_tensor

if not cython.compiled:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeAlias

    import numpy.typing as npt

    Parameters: TypeAlias = dict[str, bool | int]

    class Caller(Protocol):
        def call(self, name: str) -> Any: ...

NAMES = ("one", "two")
LIMIT = 64
SIZE: int = 1 << 20
log: logging.Logger = logging.getLogger(__name__)
_private = {}
cdef int counted = 0


class Point(NamedTuple):
    """A point."""

    x: int
    y: float


class Fault(ValueError):
    """A fault \\\\ in words.

    Attributes:
        code: A word.
    """

    code: str

    def __init__(self, code: str):
        self.code = code


@cython.final
cdef class Box:
    """Numbers."""

    cdef public list numbers
    cdef readonly bint full
    cdef public double weight
    cdef readonly Tensor tensor
    cdef object hidden

    numbers: list[int]

    def __cinit__(self, size_t room, Tensor first=None, *, object any=None, str name not None=""):
        pass

    def __dealloc__(self):
        pass

    def __len__(self):
        return 0

    def __eq__(self, other):
        return True

    def __getitem__(self, place: int) -> int:
        return 0

    @property
    def first(self) -> int | None:
        """The first number, or None."""

    @first.setter
    def first(self, value: int | None):
        pass

    @staticmethod
    def of(list numbers not None: list[int], make: Callable[[int], Parameters] | None = None,
           /, int least=-1, shape: Sequence[int] = (0, 0), uint64_t most=1 << 40, *rest: int,
           **named: str) -> Box:
        """Return a box of numbers."""

    def _protected(self) -> npt.NDArray[Any]:
        pass

    cpdef bytes raw(self, int64_t at):
        return b""

    cdef int internal(self, int value) except -1:
        return 0


Sequence[int].register(Box)


cdef class Empty(Box):
    pass


def _hidden(argument):
    pass


cdef int twice(int value):
    return 2 * value


def double(int value) -> int:
    return twice(value)
'''
STUB = '''\
# Written by tools/native_stubs.py from sample.pyx, which is the file to change.
from collections.abc import Callable, Sequence
from ksrv._native.tensor.tensor import Tensor
from typing import Any, NamedTuple, Protocol, TypeAlias, final
import logging
import numpy.typing as npt

Parameters: TypeAlias = dict[str, bool | int]

class Caller(Protocol):
    def call(self, name: str) -> Any: ...

NAMES: tuple[str, ...]
LIMIT: int
SIZE: int
log: logging.Logger

class Point(NamedTuple):
    """A point."""
    x: int
    y: float

class Fault(ValueError):
    """A fault \\\\ in words.

    Attributes:
        code: A word.
    """
    code: str
    def __init__(self, code: str) -> None: ...

@final
class Box(Sequence[int]):
    """Numbers."""
    numbers: list[int]
    @property
    def full(self) -> bool: ...
    weight: float
    @property
    def tensor(self) -> Tensor: ...
    def __init__(
        self,
        room: int,
        first: Tensor | None = None,
        *,
        any: Any = None,
        name: str = '',
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> int: ...
    @property
    def first(self) -> int | None:
        """The first number, or None."""
    @first.setter
    def first(self, value: int | None) -> None: ...
    @staticmethod
    def of(
        numbers: list[int],
        make: Callable[[int], Parameters] | None = None,
        /,
        least: int = -1,
        shape: Sequence[int] = (0, 0),
        most: int = ...,
        *rest: int,
        **named: str,
    ) -> Box:
        """Return a box of numbers."""
    def _protected(self) -> npt.NDArray[Any]: ...
    def raw(self, at: int) -> bytes: ...

class Empty(Box): ...
def double(value: int) -> int: ...
'''


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


def test_stub_has_the_public_names_of_a_module(stub_of):
    made = stub_of(SOURCE)
    assert made == STUB
    ast.parse(made)


def test_attributes_come_from_the_declarations_beside_the_module(stub_of):
    declared = "cdef class Box:\n    cdef public str name\n    cdef readonly dict sizes\n"
    made = stub_of("cdef class Box:\n    sizes: dict[str, int]\n", declared)
    assert made.endswith(
        "class Box:\n    name: str\n    @property\n    def sizes(self) -> dict[str, int]: ...\n"
    )


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
