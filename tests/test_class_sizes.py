"""No class has more data or functions than one owner needs, as CONTRIBUTING.md says.

Counted are, of each class in native/ and ksrv/, the data members and the functions that it declares itself: not what it inherits, and
in C++ neither constants nor nested types, which are counted alone.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MOST_MEMBERS, MOST_METHODS = 25, 40

ANY = 1_000

EXCEPTIONS = {
    # One member for each key, name or function that is somebody else's.
    "ksrv/server/settings.py:ServerSettings": (ANY, 1, "a member is a flag"),
    "ksrv/model/config.py:ModelConfig": (ANY, 1, "a member is a key of model.yaml"),
    # A message of the engine has no parts that somebody uses without the others.
    "ksrv/request.py:InferRequest": (30, 0, "the fields of a request, from whichever protocol"),
    "native/queue/request.hpp:Request": (30, 5, "the fields of a queued request, under one mutex"),
    "native/queue/request_queue.hpp:Queue": (
        *(25, 60),
        "one mutex holds its rules of batches, slots and sequences together",
    ),
    # Open: each of these still does the work of several owners.
}
"""Classes that are larger: their most members and methods, in steps of five, and why."""

BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\.)*',
    re.DOTALL | re.MULTILINE,
)
CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\(\d+\)\s*)?(\w+)[^;(){}=]*\{")
UNCOUNTED = re.compile(
    r"(?:using|friend|typedef|enum|class|struct|union|static_assert|static constexpr|template)\b"
)


def block_end(text: str, start: int) -> int:
    """Return the index after the brace that closes the brace at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return index + 1
    raise ValueError("a brace is not closed")


def declarations(body: str) -> Iterator[str]:
    """Yield what a class body declares, each with `{}` in place of its blocks."""
    start = index = 0
    flat = ""
    while index < len(body):
        if body[index] == "{":
            flat += body[start:index] + "{}"
            index = start = block_end(body, index)
            # A function's body ends its declaration; an initialiser, and a nested type, a semicolon.
            if re.search(r"\)[^;=]*\{\}$", flat) and not re.match(r"\s*(?:class|struct)\b", flat):
                yield flat
                flat = ""
        elif body[index] == ";":
            yield flat + body[start:index]
            flat = ""
            index = start = index + 1
        else:
            index += 1


def outside_brackets(text: str) -> str:
    """Return a declaration without the contents of angle, square and round brackets."""
    while True:
        less = re.sub(r"<[^<>()]*>|\[[^\[\]]*\]|\([^()]*\)", "", text)
        if less == text:
            return text
        text = less


def count_cpp(body: str) -> tuple[int, int]:
    """Return the members and the methods of a class body without comments and texts."""
    members = methods = 0
    for declared in declarations(body):
        text = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", "", declared).strip()
        text = re.sub(r"^template\s*<(?:[^<>]|<[^<>]*>)*>\s*", "", text)
        if not text or UNCOUNTED.match(text):
            continue
        text = re.sub(r"\boperator\s*\S+?\s*\(", "operator(", text)
        text = re.sub(r"\balignas\(\d+\)|<[^<>]*>", "", re.sub(r"<[^<>]*>", "", text))
        head = re.split(r"=(?!=)|\{\}", text)[0]
        # A pointer to a function is a member: `void (*ready)(void *owner)`.
        if "(" in head and not re.search(r"\(\s*\*\s*(?:const\s*)?\w+\s*\)", head):
            methods += 1
        else:
            members += outside_brackets(text).count(",") + 1
    return members, methods


def cpp_classes() -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the classes of native/ by file and name, with their counts."""
    for path in sorted((ROOT / "native").rglob("*.[ch]pp")):
        text = BLANKED.sub(" ", path.read_text())
        for found in CLASS.finditer(text):
            if re.search(r"\benum\s+$", text[: found.start()]):
                continue
            body = text[found.end() : block_end(text, found.end() - 1) - 1]
            yield f"{path.relative_to(ROOT)}:{found[1]}", count_cpp(body)


def python_classes() -> Iterator[tuple[str, tuple[int, int]]]:
    """The same for the Python classes of ksrv/; a member is what is assigned to `self`, or declared."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted((ROOT / "ksrv").rglob("*.py")):
        for found in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(found, ast.ClassDef):
                continue
            methods = {entry.name for entry in found.body if isinstance(entry, functions)}
            members = {
                entry.target.id
                for entry in found.body
                if isinstance(entry, ast.AnnAssign)
                and isinstance(entry.target, ast.Name)
                and "ClassVar" not in ast.dump(entry.annotation)
            }
            members |= {
                entry.attr
                for entry in ast.walk(found)
                if isinstance(entry, ast.Attribute)
                and isinstance(entry.ctx, ast.Store)
                and isinstance(entry.value, ast.Name)
                and entry.value.id == "self"
            }
            yield f"{path.relative_to(ROOT)}:{found.name}", (len(members), len(methods))


CYTHON_CLASS = re.compile(r"^(?:cdef )?class (\w+)[^\n]*:\n((?:(?: {4}[^\n]*)?\n)+)", re.MULTILINE)
CYTHON_METHOD = re.compile(r"^ {4}(?:def|cdef|cpdef|async def) [^\n=(]*?(\w+)\(", re.MULTILINE)
CYTHON_MEMBER = re.compile(
    r"^ {4}cdef (?:readonly |public )?[^(\n=]+?(\w+(?:, *\**\w+)*)(?:\[\w+\])?[^\S\n]*$",
    re.MULTILINE,
)


def cython_classes() -> Iterator[tuple[str, tuple[int, int]]]:
    """The same for the compiled classes, whose members may be declared in a .pxd."""
    for path in sorted((ROOT / "ksrv").rglob("*.pyx")):
        bodies: dict[str, str] = {}
        for part in (path.with_suffix(".pxd"), path):
            if part.exists():
                for name, body in CYTHON_CLASS.findall(re.sub(r"#[^\n]*", "", part.read_text())):
                    bodies[name] = bodies.get(name, "") + body
        for name, body in bodies.items():
            members = {
                one.strip(" *") for names in CYTHON_MEMBER.findall(body) for one in names.split(",")
            }
            yield (
                f"{path.relative_to(ROOT)}:{name}",
                (len(members), len(set(CYTHON_METHOD.findall(body)))),
            )


@functools.cache
def sizes() -> dict[str, tuple[int, int]]:
    return dict([*cpp_classes(), *python_classes(), *cython_classes()])


def test_class_sizes_are_within_limits():
    usual = (MOST_MEMBERS, MOST_METHODS, "")
    large = {
        name: counts
        for name, counts in sizes().items()
        if any(
            count > most
            for count, most in zip(counts, EXCEPTIONS.get(name, usual)[:2], strict=True)
        )
    }
    assert not large


def test_every_exception_is_needed():
    found = sizes()
    assert not {
        name
        for name in EXCEPTIONS
        if found[name][0] <= MOST_MEMBERS and found[name][1] <= MOST_METHODS
    }


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("int a = 1, b; std::map<int, int> c{}; bool d[4] = {1, 2};", (4, 0)),
        ("void f(int a = 3) const noexcept; int g() { return 1; } X() : a(1) {} ~X();", (0, 4)),
        ("static constexpr int A = 1; using B = int; enum C { x, y }; friend class D;", (0, 0)),
        ("struct E { int a; void f(); } e; void (*ready)(void *owner) = nullptr;", (1, 0)),
        ("template <class T> T h(T a) { return a; } bool operator==(const X &) const;", (0, 2)),
        ("public: int a; private: std::function<void(int, int)> b; alignas(64) int c{0};", (3, 0)),
    ],
)
def test_members_and_methods_are_counted_separately(body, counts):
    assert count_cpp(body) == counts
