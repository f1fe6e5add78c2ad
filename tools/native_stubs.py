"""Writes the typed stub (.pyi) of each Cython module beside the module.

    python tools/native_stubs.py

setup.py does the same when it builds the native core. A type is the first of these that exists:

- an annotation in the .pyx: `def f(list rows not None: list[int]) -> bool`, `NAMES: tuple[str, ...] = ...`
- an annotation in the class body, after the `cdef` lines, for a `cdef public` or `cdef readonly` attribute:
  `rows: list[int]`; `readonly` makes a property
- the C type: bint, integers, double, str, bytes, a cdef class; with `| None` if the default is None; `Any` for object
- the literal's type: `LIMIT = 64`, `NAMES = ("a", "b")`
- `Mapping[str, str].register(Fields)` gives `Fields` a base class

list, dict and tuple need an annotation, because the C type does not name their items. A public name without a type ends
the build with an error that names the line. Import a name that only annotations use below `if not cython.compiled:`.
"""

import ast
import builtins
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.AutoDocTransforms import AnnotationWriter
from Cython.Compiler.Errors import CompileError, init_thread
from Cython.Compiler.TreeFragment import StringParseContext, parse_from_strings
from native_build import MODULES, BuildFailed, files_in

INTEGERS = ["char", "short", "int", "long", "size_t", "ssize_t", "Py_ssize_t", "Py_hash_t"]
INTEGERS += [f"{sign}int{size}_t" for sign in ("", "u") for size in (8, 16, 32, 64, "ptr")]
PYTHON_TYPES = dict.fromkeys(INTEGERS, "int")
PYTHON_TYPES |= {name: name for name in ("str", "bytes", "bytearray", "float")}
PYTHON_TYPES |= {"bint": "bool", "double": "float", "void": "None", "object": "Any"}
"""Python's types by C's. A `list` or a `dict` is missing, because its name does not say of what."""
EXAMPLES = {"list": "list[int]", "dict": "dict[str, int]", "tuple": "tuple[int, ...]"}
FIXED = {
    "__len__": "def __len__(self) -> int: ...",
    "__bool__": "def __bool__(self) -> bool: ...",
    "__getbuffer__": "def __buffer__(self, flags: int, /) -> memoryview: ...",
}
"""Methods whose signature Python fixes."""
SHOWN = {
    "__init__", "__cinit__", "__call__", "__getitem__", "__iter__", "__next__", "__contains__", "__enter__", "__exit__",
}  # fmt: skip
"""Further special methods of a stub. `object` declares the others."""
FILE_LINE = "# Written by tools/native_stubs.py from {}, which is the file to change."


def text_of(node: Any) -> str:
    return str(AnnotationWriter().write(node))


def literal(node: Any) -> Any:
    """Return the value of a literal, or None for any other expression."""
    try:
        return ast.literal_eval(text_of(node))
    except (ValueError, SyntaxError):
        return None


def each(body: Any) -> Iterator[Any]:
    """Yield the statements of a body, also the statements in `if not cython.compiled:`."""
    if isinstance(body, Nodes.StatListNode):
        for statement in body.stats:
            yield from each(statement)
    elif isinstance(body, Nodes.IfStatNode):
        if text_of(body.if_clauses[0].condition) == "not cython.compiled":
            yield from each(body.if_clauses[0].body)
    elif body is not None:
        yield body


def of_type(nodes: Any, *types: type) -> list[Any]:
    return [node for node in nodes if isinstance(node, types)]


def name_of(node: Any) -> str:
    return str(getattr(node, "name", None) or getattr(node, "class_name", ""))


def decorators(node: Any) -> list[str]:
    return [text_of(decorator.decorator) for decorator in node.decorators or []]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def documentation(node: Any) -> list[str]:
    """Return the lines of a docstring."""
    if not node.doc:
        return []
    text = str(node.doc).rstrip().replace("\\", "\\\\").replace('"""', '\\"""')
    first, *rest = text.splitlines()
    deep = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    lines = [f'"""{first}', *(line[deep:] for line in rest)]
    return [*lines, '"""'] if rest else [f'{lines[0]}"""']


class Stub:
    """The stub of one module.

    Args:
        source: The .pyx file. The .pxd beside it is read too.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.faults: list[str] = []
        self.imports: dict[str, tuple[str, str]] = {}
        """By name: the module, and what is imported of it; "" for the module itself."""
        self.used: set[str] = set()
        self.attributes: dict[str, dict[str, tuple[str, Any, Any, Any]]] = {}
        """By class and name: "public" or "readonly", the C type, the declarator, the position."""
        declarations = source.with_suffix(".pxd")
        declared = list(each(self.tree(declarations))) if declarations.exists() else []
        self.statements = list(each(self.tree(source)))
        for node in [*declared, *self.statements]:
            self.note_imports(node)
            if isinstance(node, Nodes.CClassDefNode):
                self.note_attributes(node)
        assigned = of_type(self.statements, Nodes.SingleAssignmentNode)
        self.names = {name_of(node.lhs) for node in assigned}
        self.names |= {name_of(node) for node in [*declared, *self.statements]}
        self.registered = self.abstract_bases()

    def tree(self, path: Path) -> Any:
        context = StringParseContext(str(path), cpp=True)
        context.set_language_level(3)
        init_thread()
        level = "module_pxd" if path.suffix == ".pxd" else "module"
        try:
            text = path.read_text()
            return parse_from_strings(str(path), text, context=context, level=level).body
        except CompileError as error:
            raise BuildFailed(f"{error}\n{path} is not valid Cython") from error

    def note_imports(self, node: Any) -> None:
        if isinstance(node, Nodes.FromCImportStatNode):
            for _, name, alias in node.imported_names:
                self.imports.setdefault(alias or name, (node.module_name, name))
        elif isinstance(node, Nodes.FromImportStatNode):
            for name, target in node.items:
                self.imports[target.name] = (str(node.module.module_name.value), name)
        elif isinstance(getattr(node, "rhs", None), ExprNodes.ImportNode):
            self.imports[node.lhs.name] = (str(node.rhs.module_name.value), "")

    def note_attributes(self, node: Any) -> None:
        found = self.attributes.setdefault(node.class_name, {})
        for line in of_type(each(node.body), Nodes.CVarDefNode):
            for declarator in line.declarators:
                name = declarator.declared_name()
                if line.visibility != "private" and not name.startswith("_"):
                    found[name] = (line.visibility, line.base_type, declarator, line.pos)

    def abstract_bases(self) -> dict[str, list[str]]:
        """Return what `Mapping[str, int].register(Name)` says of the module's classes."""
        found: dict[str, list[str]] = {}
        for line in of_type(self.statements, Nodes.ExprStatNode):
            function = getattr(line.expr, "function", None)
            if getattr(function, "attribute", "") == "register":
                base = self.use(text_of(function.obj), line.pos)
                found.setdefault(text_of(line.expr.args[0]), []).append(base)
        return found

    def fault(self, position: Any, sentence: str) -> str:
        self.faults.append(f"{position[0].get_description()}:{position[1]}: {sentence}")
        return "Any"

    def add_import(self, module: str, name: str) -> None:
        self.imports.setdefault(name, (module, name))
        self.used.add(name)

    def use(self, annotation: str, position: Any) -> str:
        """Return an annotation, and have the stub import its names."""
        for name in of_type(ast.walk(ast.parse(annotation)), ast.Name):
            if name.id in self.imports:
                self.used.add(name.id)
            elif name.id not in self.names and not hasattr(builtins, name.id):
                where = "import it under `if not cython.compiled:`"
                self.fault(position, f"{name.id} in the type {annotation} is unknown: {where}")
        return annotation

    def derived(self, base: Any, declarator: Any = None) -> str | None:
        """Return the Python type of a C type, or None if the C type does not say enough."""
        name = getattr(base, "name", None)
        if name is None or isinstance(
            declarator, (Nodes.CPtrDeclaratorNode, Nodes.CArrayDeclaratorNode)
        ):
            return None
        if name == "object":
            self.add_import("typing", "Any")
        if name in PYTHON_TYPES:
            return PYTHON_TYPES[name]
        # A name with a capital from another compiled module is a class in Python.
        if name in self.attributes or self.imports.get(name, ("",))[0].startswith("ksrv."):
            return self.use(name, base.pos)
        return None

    def argument(self, arg: Any, of: str) -> str:
        """Return an argument of the function or method `of`, with its type and default."""
        typed = bool(arg.declarator.declared_name()) and arg.base_type.name is not None
        name = arg.declarator.declared_name() or arg.base_type.name
        if arg.annotation:
            kind = self.use(text_of(arg.annotation), arg.pos)
        elif found := self.derived(arg.base_type, arg.declarator) if typed else None:
            optional = arg.default is not None and arg.default.is_none and found != "Any"
            kind = f"{found} | None" if optional else found
        else:
            written = f"{arg.base_type.name} {name}" if typed else name
            example = EXAMPLES.get(arg.base_type.name, "int")
            what = f"the type of `{written}` in {of} is not known: write its Python type"
            kind = self.fault(arg.pos, f"{what}, as in `{written}: {example}`")
        if arg.default is None:
            return f"{name}: {kind}"
        known = arg.default.is_none or literal(arg.default) is not None
        return f"{name}: {kind} = {text_of(arg.default) if known else '...'}"

    def starred(self, stars: str, arg: Any, of: str) -> str:
        written = f"{stars}{arg.name}"
        if arg.annotation:
            return f"{written}: {self.use(text_of(arg.annotation), arg.pos)}"
        what = f"the type of `{written}` in {of} is not known: write it"
        return f"{written}: {self.fault(arg.pos, f'{what}, as in `{written}: int`')}"

    def arguments(self, node: Any, of: str, own: bool) -> Iterator[str]:
        """Yield the arguments of a function; the first as it is if `own`, for it is the object."""
        star, stars = getattr(node, "star_arg", None), getattr(node, "starstar_arg", None)
        starred = False
        for at, arg in enumerate(node.args):
            if arg.kw_only and not starred:
                starred = True
                yield self.starred("*", star, of) if star else "*"
            if own and at == 0:
                yield arg.declarator.declared_name() or arg.base_type.name
            else:
                yield self.argument(arg, of)
            if arg.pos_only and not (at + 1 < len(node.args) and node.args[at + 1].pos_only):
                yield "/"
        if star and not starred:
            yield self.starred("*", star, of)
        if stars:
            yield self.starred("**", stars, of)

    def function(self, node: Any, of: str = "") -> list[str]:
        """Return the lines of a function, or of a method of the class `of`."""
        compiled = isinstance(node, Nodes.CFuncDefNode)
        name = node.declarator.declared_name() if compiled else node.name
        full = f"{of}.{name}" if of else name
        marks = decorators(node)
        own = bool(of) and "staticmethod" not in marks
        taken = list(self.arguments(node.declarator if compiled else node, full, own))
        if name in ("__init__", "__cinit__") or any(mark.endswith(".setter") for mark in marks):
            result: str | None = "None"
        elif compiled:
            result = self.derived(node.base_type)
            advice = "a cpdef function has no annotation for it: write a cdef and a def function"
        elif node.return_type_annotation:
            result = self.use(text_of(node.return_type_annotation), node.pos)
        else:
            result = None
            advice = f"write it, as in `def {name}(...) -> int:`"
        if result is None:
            result = self.fault(node.pos, f"what {full} returns is not known: {advice}")
        lines = [f"@{mark}" for mark in marks if not mark.startswith("cython.")]
        shown = "__init__" if name == "__cinit__" else name
        head = [f"def {shown}({', '.join(taken)}) -> {result}:"]
        if len(head[0]) > 90:
            head = [f"def {shown}(", *(f"    {argument}," for argument in taken), f") -> {result}:"]
        if doc := documentation(node):
            return [*lines, *head, *indented(doc)]
        return [*lines, *head[:-1], f"{head[-1]} ..."]

    def klass(self, node: Any) -> list[str]:
        """Return the lines of a class."""
        name = name_of(node)
        bases = [self.use(text_of(base), node.pos) for base in getattr(node.bases, "args", [])]
        bases += self.registered.get(name, [])
        lines = documentation(node) + self.fields(node, bool(bases))
        methods = of_type(each(node.body), Nodes.DefNode, Nodes.CFuncDefNode)
        named = {name_of(method) for method in methods}
        for method in methods:
            if isinstance(method, Nodes.CFuncDefNode):
                lines += self.function(method, name) if method.overridable else []
            elif method.name in FIXED:
                lines.append(FIXED[method.name])
            elif method.name == "__cinit__" and "__init__" in named:
                continue
            elif not method.name.startswith("__") or method.name in SHOWN:
                lines += self.function(method, name)
        head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        lines = [head, *indented(lines)] if lines else [f"{head} ..."]
        if "cython.final" in decorators(node):
            self.add_import("typing", "final")
            lines.insert(0, "@final")
        return lines

    def fields(self, node: Any, has_bases: bool) -> list[str]:
        """Return the lines of a class's attributes."""
        of, lines = name_of(node), []
        annotated = of_type(each(node.body), Nodes.ExprStatNode)
        said = {line.expr.name: line.expr for line in annotated if line.expr.annotation}
        declared = self.attributes.get(of, {}) if isinstance(node, Nodes.CClassDefNode) else {}
        for name, (visibility, base, declarator, position) in declared.items():
            if name in said:
                kind: str | None = self.use(text_of(said[name].annotation), said.pop(name).pos)
            else:
                kind = self.derived(base, declarator)
            if kind is None:
                example = f"`{name}: {EXAMPLES.get(base.name, 'int')}` in the body of the class"
                what = (
                    f"the type of `{base.name} {name}` in {of} is not known: write its Python type"
                )
                kind = self.fault(position, f"{what}, as in {example} in {self.source.name}")
            if visibility == "readonly":
                lines += ["@property", f"def {name}(self) -> {kind}: ..."]
            else:
                lines.append(f"{name}: {kind}")
        for name, expression in said.items():
            if isinstance(node, Nodes.CClassDefNode) and not has_bases:
                what = (
                    f"{of}.{name} has a type and is no `cdef public` or `cdef readonly` attribute"
                )
                self.fault(expression.pos, f"{what}: declare it")
            lines.append(f"{name}: {self.use(text_of(expression.annotation), expression.pos)}")
        return lines

    def assigned(self, node: Any) -> list[str]:
        """Return the line of a name of the module."""
        if not (isinstance(node, Nodes.SingleAssignmentNode) and node.lhs.is_name):
            self.fault(node.pos, "several names are set at once: write a line for each of them")
            return []
        name, annotation = node.lhs.name, node.lhs.annotation
        if name.startswith("_") or isinstance(node.rhs, ExprNodes.ImportNode):
            return []
        if annotation:
            kind = self.use(text_of(annotation), node.pos)
            value = f" = {self.use(text_of(node.rhs), node.pos)}" if kind == "TypeAlias" else ""
            return [f"{name}: {kind}{value}"]
        value = literal(node.rhs)
        if isinstance(value, (bool, int, float, str, bytes)):
            return [f"{name}: {type(value).__name__}"]
        if isinstance(value, tuple) and {type(item) for item in value} == {str}:
            return [f"{name}: tuple[str, ...]"]
        self.fault(
            node.pos, f"the type of {name} is not known: write it, as in `{name}: int = ...`"
        )
        return []

    def part(self, node: Any) -> list[str]:
        """Return the lines of a statement of the module."""
        if isinstance(node, Nodes.AssignmentNode):
            return self.assigned(node)
        if isinstance(node, Nodes.CFuncDefNode):
            return self.function(node) if node.overridable else []
        if name_of(node).startswith("_"):
            return []
        if isinstance(node, Nodes.DefNode):
            return self.function(node)
        return self.klass(node) if isinstance(node, Nodes.ClassDefNode) else []

    def import_lines(self) -> list[str]:
        found: dict[str, list[str]] = {}
        for name in sorted(self.used):
            module, imported = self.imports[name]
            alias = "" if name == (imported or module) else f" as {name}"
            if imported:
                found.setdefault(f"from {module} import ", []).append(f"{imported}{alias}")
            else:
                found[f"import {module}{alias}"] = []
        return [f"{head}{', '.join(names)}" for head, names in sorted(found.items())]

    def text(self) -> str:
        """Return the stub.

        Raises:
            BuildFailed: The types of some public things are not known; each is named.
        """
        parts = [lines for lines in map(self.part, self.statements) if lines]
        if self.faults:
            raise BuildFailed("\n".join(self.faults))
        lines = [FILE_LINE.format(self.source.name), *self.import_lines()]
        for before, part in pairwise([[], *parts]):
            lines += part if len(before) == len(part) == 1 else ["", *part]
        return "\n".join(lines) + "\n"


def write_stubs() -> list[Path]:
    """Write the stubs that are older than their modules, and return all of them.

    Raises:
        BuildFailed: The types of some public things are not known; each is named.
    """
    stubs, faults = [], []
    for source in files_in(MODULES, "*.pyx"):
        stub = source.with_suffix(".pyi")
        stubs.append(stub)
        made_of = [source, source.with_suffix(".pxd"), Path(__file__)]
        newest = max(path.stat().st_mtime_ns for path in made_of if path.exists())
        if stub.exists() and stub.stat().st_mtime_ns > newest:
            continue
        try:
            text = Stub(source).text()
        except BuildFailed as failure:
            faults.append(str(failure))
        else:
            fresh = stub.with_suffix(".pyi.new")
            fresh.write_text(text)
            fresh.replace(stub)
    if faults:
        raise BuildFailed("\n".join(faults))
    for stub in set(files_in(MODULES, "*.pyi")) - set(stubs):
        stub.unlink()
    return stubs


if __name__ == "__main__":
    try:
        write_stubs()
    except BuildFailed as failure:
        sys.exit(f"error: {failure}")
