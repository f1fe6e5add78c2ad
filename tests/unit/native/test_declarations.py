"""The declarations that the build writes for Cython, on small headers."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HEADER = """
// A comment with `class Nothing;`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "box/size.hpp"

namespace ksrv::box {

class Queue;

#define KSRV_KINDS(row) row(ROUND) row(SQUARE)
#define KSRV_ROW(name) KIND_##name,
enum Kind : int { KSRV_KINDS(KSRV_ROW) KINDS };
#undef KSRV_ROW
enum class Lid : std::uint8_t { open, shut = 4 };

inline constexpr std::size_t LONGEST = 1 << 4;
inline constexpr const char *NAMES[KINDS] = {"round", "square"};

template <class T, std::size_t Room> class Few {
  public:
    T &operator[](std::size_t index) noexcept { return all_[index]; }
    const T &operator[](std::size_t index) const noexcept { return all_[index]; }

  private:
    T all_[Room];
};

using Opened = void (*)(Queue *queue, int times);

struct Base {
    std::string label{"a;b"};
};

class Box final : public Base, private Hidden {
  public:
    explicit Box(Size room) : room_(room), from{1} { label = "}"; }
    Box(const Box &) = delete;
    ~Box();

    static Box *make() noexcept;
    bool push(const Queue *queue, int times = 1, bool now = false) noexcept;
    void grow(std::vector<Size> &sizes);
    void unused(Unknown it);

    std::uint64_t count = 0, *other = nullptr;
    char text[LONGEST + 1] = {};
    std::atomic<bool> closed{false};
    std::shared_ptr<const Base> base;
    Few<Base, 4> few;
    Queue *queue = nullptr;
    void (*opened)(Box *box) noexcept = nullptr;
    int from = 2;

  private:
    Size hidden;
};

inline void free(Box *box) noexcept { box->grow({}); }
template <class T> bool put(const T *items, Size count);

}  // namespace ksrv::box
"""
SIZE = """
#pragma once
#include <cstddef>
namespace ksrv {
struct Hidden {};
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
from native.box.box cimport (
    Box as CBox, KIND_SQUARE, LONGEST, Lid, NAMES, Opened,  # a comment
    free, put,
)
from native.box.queue cimport Queue

cdef void opened(Queue *queue, int times) noexcept:
    print(queue.waiting(), times)

def use():
    cdef CBox *box = CBox.make()
    cdef Opened call = opened
    cdef long number = 3
    box.push(box.queue)
    box.push(box.queue, 2, box.closed.load())
    box.grow([box.count])
    box.few[1].label = b"text"
    box.from_ = box.queue.waiting() + box.base.get().label.size()
    put(&number, 1)
    free(box)
    return LONGEST, <int>KIND_SQUARE, <int>Lid.shut, NAMES[0], box.text[0], box.other[0]
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


def declared(folder: Path, header: str) -> str:
    """Return the declarations of a header, with the types as C++ writes them."""
    return (folder / f"build/native/declarations/native/{header}.pxd").read_text()


def translated(folder: Path) -> str:
    """Return the C++ that Cython makes of the module, or fail with what Cython says."""
    command = [sys.executable, "-m", "cython", "-3", "--cplus", "-Ibuild/native/declarations"]
    run = subprocess.run(
        [*command, "ksrv/_native/box/box.pyx", "-o", "box.cpp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return (folder / "box.cpp").read_text()


def test_module_can_use_what_its_headers_declare(folder, tool):
    tool.write_declarations()
    made = translated(folder)
    assert "ksrv::box::Box::make()" in made
    assert '#include "box/queue.hpp"' in made


@pytest.mark.parametrize("name", ["hidden", "unused", "opened"])
def test_members_that_are_private_or_not_used_are_left_out(folder, tool, name):
    tool.write_declarations()
    assert name not in declared(folder, "box/box")


def test_class_without_its_header_is_incomplete_where_it_is_named(folder, tool):
    tool.write_declarations()
    assert 'cdef cppclass ksrv_box_Queue "ksrv::box::Queue"\n' in declared(folder, "shared")
    for header in ("box/box", "box/queue"):
        assert "from native.shared cimport ksrv_box_Queue as Queue\n" in declared(folder, header)


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
