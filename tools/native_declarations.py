"""Writes Cython's declarations (.pxd) of the C++ that compiled modules use, from the headers of the native core.

    python tools/native_declarations.py

setup.py does the same when it builds the native core. Cython code names a header like a module and imports from it:

    from native.queue.request_queue cimport PUSH_FULL, Queue as CQueue

- A class has its constructors, `operator[]` and the public members whose names follow a dot somewhere in a .pyx or
  .pxd file.
- A class that a header only names (`class Queue;`) is incomplete in Cython too, unless its header is imported.
- A C++ function that is not `noexcept` raises in Cython. Pointers to functions are `noexcept`, because C++ that calls
  them does not know Python, and may need the GIL.
- A name that is a keyword gets a `_`: `from_`.

If Cython cannot express a declaration, the build ends with an error that names its header and line. For a member of a
class it ends when Cython code uses the member.
"""

import keyword
import re
import sys
from pathlib import Path

from native_build import DECLARATIONS, MODULES, NATIVE, BuildFailed, files_in, is_text
from native_headers import Entity, Headers, Token, Tokens, closing, find, split, text_of

SHARED = "native.shared"
"""The module of incomplete classes, and of numbers that are arguments of templates."""
CIMPORT = re.compile(r"^from native\.([\w.]+) cimport (\([^)]*\)|[^\n(]+)$", re.MULTILINE)
BUILTIN = {"unsigned", "signed", "char", "short", "int", "long", "float", "double", "void"}
BUILTIN |= {"ssize_t", "const", "*", ","}
RESERVED = {*keyword.kwlist, "cdef", "cpdef", "cimport", "ctypedef", "include"}
STANDARD = {f"{u}int{n}_t": "libc.stdint" for u in ("", "u") for n in (8, 16, 32, 64)}
STANDARD |= {
    name: f"libcpp.{name}" for name in ("atomic", "map", "mutex", "string", "string_view", "vector")
}
STANDARD |= {"shared_ptr": "libcpp.memory", "unique_ptr": "libcpp.memory", "pair": "libcpp.utility"}
STANDARD |= {"ptrdiff_t": "libc.stddef", "size_t": "libc.stddef", "bool": "libcpp"}
STANDARD |= {"gid_t": "posix.types", "uid_t": "posix.types", "timespec": "posix.time"}
STANDARD["sockaddr_storage"] = "ksrv._native.http.sockets"
"""The modules that declare types of libraries to Cython."""


class InexpressibleError(Exception):
    """Cython has no form for a part of a declaration; the text names the part."""


class Declarations:
    """The declarations for all compiled modules.

    Args:
        headers: The headers.
        sources: The text of each .pyx and .pxd file, by its path.
    """

    def __init__(self, headers: Headers, sources: dict[str, str]) -> None:
        self.headers = headers
        found = re.findall(r"\.(\w+)", "".join(sources.values()))
        self.attributes = {*found, *(name.removesuffix("_") for name in found)}
        self.imports: dict[str, dict[str, str]] = {}
        """By header and name: the line that imports the name."""
        self.parts: dict[str, dict[Entity, list[str]]] = {}
        """By header: the lines of each declaration."""
        self.shared: set[str] = set()
        """The lines of the module SHARED."""
        self.faults: list[str] = []
        for source, text in sources.items():
            for found in CIMPORT.finditer(text):
                path = f"{NATIVE}/{found[1].replace('.', '/')}.hpp"
                for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", found[2])):
                    wanted = self.declared(name, path)
                    if not wanted:
                        line = text[: found.start()].count("\n") + 1
                        self.faults.append(f"{source}:{line}: {path} does not declare {name}")
                    for entity in wanted:
                        self.declare(entity)

    def declared(self, name: str, path: str) -> list[Entity]:
        """Return what a header declares by a name outside of classes."""
        found = [
            entity for _, entity in self.headers.entities.get(name, ()) if entity.header == path
        ]
        return [entity for entity in found if entity.kind != "class name" and not entity.klass]

    def declare(self, entity: Entity) -> None:
        """Write the declaration of an entity, and of all that it needs."""
        parts = self.parts.setdefault(entity.header, {})
        if entity not in parts:
            parts[entity] = []
            try:
                parts[entity] = self.lines(entity)
            except InexpressibleError as error:
                self.faults.append(fault(entity, error))

    def lines(self, entity: Entity) -> list[str]:
        """Return the lines that declare an entity."""
        if entity.kind == "class":
            return self.class_lines(entity)
        if entity.kind == "enum":
            return self.enum_lines(entity)
        if entity.kind == "function":
            return self.function_lines(entity)
        if entity.kind == "using":
            target, name = list(entity.tokens[3:]), Token(entity.names[0], entity.line)
            end = closing(target, find(target, "(")) if find(target, "(") < len(target) else 0
            if end == 0:
                return [f"ctypedef {self.translated(target, entity)} {name.text}"]
            target = [*target[:end], name, *target[end : closing(target, end + 1) + 1]]
            return [f"ctypedef {self.translated(target, entity)} noexcept"]
        if entity.kind == "pointer":
            return [f"{self.translated(entity.tokens, entity)} noexcept"]
        constant = (
            "const " if "constexpr" in entity.marks and entity.tokens[0].text != "const" else ""
        )
        first, *others = split(entity.tokens)
        base = first[: min(find(first, "*", "&"), find(first, "[") - 1)]
        variables = [first, *([*base, *other] for other in others)]
        return [constant + self.translated(variable, entity) for variable in variables]

    def class_lines(self, entity: Entity) -> list[str]:
        bases = []
        for part in split(entity.tokens[find(entity.tokens, ":") + 1 :]):
            if part[0].text not in ("private", "protected"):
                bases.append(self.translated(part[part[0].text == "public" :], entity))
        lines: dict[str, str] = {}
        for member in entity.members:
            if self.attributes.isdisjoint(member.names) and member.names[0] not in (
                entity.names[0],
                "operator[]",
            ):
                continue
            try:
                if member.kind != "function" and member.marks & {"static", "constexpr"}:
                    raise InexpressibleError("a static member")
                for line in self.lines(member):
                    lines.setdefault(f"{member.names} {line.partition('(')[2] or line}", line)
            except InexpressibleError as error:
                lines[fault(member, error)] = f"# not declared: {fault(member, error)}"
        if not any(member.names == entity.names for member in entity.members):
            lines[entity.names[0]] = f"{entity.names[0]}() noexcept nogil"
        inherited = f"({', '.join(bases)})" if bases else ""
        head = f"cdef cppclass {entity.names[0]}{generic(entity)}{inherited}:"
        return [head, *(f"    {line}" for line in "\n".join(lines.values()).split("\n"))]

    def enum_lines(self, entity: Entity) -> list[str]:
        head = f"cdef enum {' '.join(entity.names)}:"
        if entity.tokens[1:2] and entity.tokens[1].text == "class":
            under = self.translated(entity.tokens[find(entity.tokens, ":") + 1 :], entity)
            head = f"cdef enum class {entity.names[0]}({under or 'int'}):"
        return [head, *(f"    {part[0].text}" for part in split(entity.body))]

    def function_lines(self, entity: Entity) -> list[str]:
        """Return a declaration for each number of arguments, because some may have defaults."""
        bracket = find(entity.tokens, "(")
        end = closing(entity.tokens, bracket)
        arguments = split(entity.tokens[bracket + 1 : end])
        given = [self.translated(part[: find(part, "=")], entity) for part in arguments]
        needed = sum(find(part, "=") == len(part) for part in arguments)
        head = self.translated(entity.tokens[:bracket], entity) + generic(entity)
        static = "@staticmethod\n" if "static" in entity.marks else ""
        raises = (
            "noexcept"
            if find(entity.tokens[end:], "noexcept") < len(entity.tokens) - end
            else "except +"
        )
        counts = range(needed, len(given) + 1)
        return [f"{static}{head}({', '.join(given[:count])}) {raises} nogil" for count in counts]

    def translated(self, tokens: Tokens, of: Entity) -> str:
        """Return Cython's form of a part of a declaration, and note the types that it uses."""
        words: list[str] = []
        parameters = [*of.parameters, *(of.klass.parameters if of.klass else ())]
        at = angles = 0
        while at < len(tokens):
            text, before, end = tokens[at].text, tokens[at - 1].text if at else "", at + 1
            angles += (text == "<") - (text == ">")
            if (
                text in BUILTIN
                or (text in "[]()+-" and not angles)
                or (text == "&" and before != "&")
            ):
                words.append(text)
            elif text in ("<", ">"):
                words.append("[" if text == "<" else "]")
            elif text.isdigit():
                words.append(self.number(text, of) if angles else text)
            elif (
                text.isidentifier()
                and (before in ("*", "&", ">") or before.isidentifier())
                and before != "const"
            ):
                is_argument = of.kind in ("function", "pointer") and before != "operator"
                cname = "" if is_argument else f' "{text}"'
                words.append(f"{text}_{cname}" if text in RESERVED else text)
            elif text in parameters and before != "[":
                words.append(text)
            elif text.isidentifier() and text not in parameters:
                while end < len(tokens) and tokens[end].text == "::":
                    end += 2
                is_complete = angles == 0 and text_of(tokens[end : end + 1]) not in ("*", "&")
                words.append(self.named(text_of(tokens[at:end]), of, is_complete))
            else:
                raise InexpressibleError(f"`{text_of(tokens, ' ')}`")
            at = end
        return " ".join(words)

    def number(self, text: str, of: Entity) -> str:
        """Return the name of the type that represents a number in the arguments of a template."""
        self.shared.add(f'cdef cppclass number_{text} "{text}"')
        return self.imported(f"number_{text}", SHARED, f"number_{text}", of.header)

    def named(self, name: str, of: Entity, is_complete: bool) -> str:
        """Return the name of a type or constant in the declarations of a header, which get it."""
        local = name.rpartition("::")[2]
        entity = self.headers.meant(name, of.qualified)
        if entity is None and local in STANDARD and name.removeprefix("std::") == local:
            return self.imported(local, STANDARD[local], local, of.header)
        if entity is None:
            raise InexpressibleError(f"`{name}`")
        if entity.kind != "class name" and entity.header in self.headers.includes(of.header):
            self.declare(entity)
            if entity.header == of.header:
                return local
            return self.imported(local, module_of(entity.header), local, of.header)
        if is_complete or not entity.kind.startswith("class"):
            raise InexpressibleError(f"`{name}`, because its header is not included,")
        self.shared.add(incomplete(entity))
        return self.imported(local, SHARED, entity.full, of.header)

    def imported(self, local: str, module: str, name: str, path: str) -> str:
        imports = self.imports.setdefault(path, {})
        line = f"from {module} cimport {name}"
        if self.declared(local, path) or imports.get(local, line) not in (
            line,
            f"{line} as {local}",
        ):
            local = f"{module}.{name}".replace(".", "_")
        imports[local] = line if name == local else f"{line} as {local}"
        return local

    def texts(self) -> dict[Path, str]:
        """Return the text of each file, by its path."""
        found = {
            SHARED: [
                "cdef extern from *:",
                *(f"    {line}" for line in [*sorted(self.shared), "pass"]),
            ]
        }
        for path, parts in self.parts.items():
            imports, lines = self.imports.get(path, {}), []
            extern = f'cdef extern from "{Path(path).relative_to(NATIVE)}" namespace'
            ordered = sorted(parts, key=place)
            for entity in ordered:
                if incomplete(entity) in self.shared:
                    imports[entity.names[0]] = (
                        f"from {SHARED} cimport {entity.full} as {entity.names[0]}"
                    )
                elif entity.kind == "class" and not entity.parameters:
                    lines += [f'{extern} "{entity.scope}":', f"    cdef cppclass {entity.names[0]}"]
            for entity in ordered:
                lines += [f'{extern} "{entity.scope}":', *(f"    {line}" for line in parts[entity])]
            note = f"# Written by tools/native_declarations.py from {path}, which is the file to change."
            found[module_of(path)] = [note, *sorted(imports.values()), *lines]
        return {
            DECLARATIONS / f"{name.replace('.', '/')}.pxd": "\n".join([*text, ""])
            for name, text in found.items()
        }


def place(entity: Entity) -> tuple[int, int, int]:
    """Return the order of declarations: a class after the types in it."""
    return (entity.klass or entity).line, -1 if entity.klass else 0, entity.line


def generic(entity: Entity) -> str:
    return f"[{', '.join(entity.parameters)}]" if entity.parameters else ""


def incomplete(entity: Entity) -> str:
    return f'cdef cppclass {entity.full} "{entity.qualified}"'


def fault(entity: Entity, error: InexpressibleError) -> str:
    return f"{entity.header}:{entity.line}: Cython has no form for {error} in {entity.qualified}"


def module_of(path: str) -> str:
    return path.removesuffix(".hpp").replace("/", ".")


def write_declarations() -> None:
    """Write the declarations that changed.

    Raises:
        BuildFailed: A header lacks something, or Cython cannot express it; each line is named.
    """
    sources = {str(path): path.read_text() for path in files_in(MODULES, "*.p[xy][xd]")}
    declarations = Declarations(Headers(), sources)
    if declarations.faults:
        raise BuildFailed("\n".join(declarations.faults))
    texts = declarations.texts()
    for path, text in texts.items():
        if not is_text(path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in set(DECLARATIONS.rglob("*.pxd")) - set(texts):
        path.unlink()


if __name__ == "__main__":
    try:
        write_declarations()
    except BuildFailed as failure:
        sys.exit(f"error: {failure}")
