"""The declarations that the build writes for Cython, on small headers."""

import importlib
import os
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HEADER = """
#pragma once
#include "box/size.hpp"
namespace ksrv::box {
class Queue;
class Box {
  public:
    Box() = default;
    Queue *queue = nullptr;
    void unused(Unknown it);
  private:
    Size hidden;
};
}
"""
SIZE = """
#pragma once
#include <cstddef>
namespace ksrv {
using Size = std::size_t;
}
"""
QUEUE = """
#pragma once
#include "box/box.hpp"
namespace ksrv::box {
class Queue {
  public:
    int waiting() const noexcept;
};
}
"""
MODULE = """
from native.box.box cimport Box as CBox
from native.box.queue cimport Queue

def use():
    cdef CBox box
    cdef Queue *queue = box.queue
    return queue.waiting()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with headers and a module, as the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"box": HEADER, "size": SIZE, "queue": QUEUE}.items():
        write(tmp_path / f"native/box/{name}.hpp", text)
    write(tmp_path / "ksrv/_native/box/box.pyx", MODULE)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("native_declarations")


def test_only_changed_declarations_are_written(folder, tool):
    tool.write_declarations()
    files = {path: os.stat(path).st_mtime_ns for path in folder.rglob("*.pxd")}
    header = folder / "native/box/queue.hpp"
    header.write_text(header.read_text().replace("int waiting", "long waiting"))
    tool.write_declarations()
    changed = {path.stem for path, when in files.items() if path.stat().st_mtime_ns != when}
    assert changed == {"queue"}


def test_declarations_of_a_deleted_header_are_deleted(folder, tool):
    tool.write_declarations()
    write(folder / "ksrv/_native/box/box.pyx", "from native.box.size cimport Size\n")
    tool.write_declarations()
    assert {path.stem for path in folder.rglob("*.pxd")} == {"shared", "size"}


@pytest.mark.parametrize(
    ("header", "module", "fault"),
    [
        ("int a();", "B", "ksrv/_native/box/box.pyx:1: native/box/a.hpp does not declare B"),
        ("int A(Other it);", "A", "native/box/a.hpp:2: Cython has no form for `Other` in ksrv::A"),
        (
            "int A(int &&it);",
            "A",
            "native/box/a.hpp:2: Cython has no form for `int & & it` in ksrv::A",
        ),
        ("auto A() -> int;", "A", "native/box/a.hpp:2: Cython has no form for `auto` in ksrv::A"),
        (
            "struct B;\nint A(B it);",
            "A",
            "native/box/a.hpp:3: Cython has no form for `B`, because its header is not included, in ksrv::A",
        ),
    ],
)
def test_declaration_that_cannot_be_expressed_ends_the_build_and_names_the_line(
    folder, tool, header, module, fault
):
    write(folder / "native/box/a.hpp", f"namespace ksrv {{\n{header}\n}}\n")
    write(folder / "ksrv/_native/box/box.pyx", f"from native.box.a cimport {module}\n")
    with pytest.raises(tool.BuildFailed) as failure:
        tool.write_declarations()
    assert str(failure.value) == fault


def test_build_names_the_line_of_a_member_that_cannot_be_expressed(folder, tool):
    module = folder / "ksrv/_native/box/box.pyx"
    module.write_text(MODULE + "\ndef more(): CBox.make().unused(1)\n")
    tool.write_declarations()
    said = "box.pyx:40:24: Object of type 'Box' has no attribute 'unused'"
    line = HEADER[: HEADER.index("unused")].count("\n") + 1
    fault = (
        f"native/box/box.hpp:{line}: Cython has no form for `Unknown` in ksrv::box::Box::unused\n"
    )
    assert importlib.import_module("native_build").undeclared(said) == fault


def test_header_that_does_not_compile_ends_the_build(folder, tool):
    write(folder / "native/box/a.hpp", '#include "box/missing.hpp"\n')
    with pytest.raises(tool.BuildFailed, match=r"missing\.hpp"):
        tool.write_declarations()
