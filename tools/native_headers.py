"""Reads the declarations in the headers of the native core, for `tools/native_declarations.py`.

The compiler's preprocessor expands macros first. The reader knows the C++ of these headers, not all of C++: what it does
not know, it takes for a variable whose type Cython cannot express.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from native_build import COMMON, NATIVE, BuildFailed, compiler

TOKEN = re.compile(
    r"""\w?"(?:\\.|[^"\\])*"|\d[\w.']*|[A-Za-z_]\w*|'(?:\\.|[^'\\])+'|::|->|\.\.\.|\S"""
)
CLOSING = {"(": ")", "[": "]", "{": "}"}
ACCESS = {"public", "protected", "private"}
SPECIFIERS = {"inline", "static", "constexpr", "extern", "virtual", "explicit", "mutable"}
SPECIFIERS |= {"template", "alignas", "__attribute__", "[", '"C"'}


class Token(NamedTuple):
    text: str
    line: int


Tokens = Sequence[Token]


@dataclass(eq=False)
class Entity:
    """A declaration in a header.

    Attributes:
        kind: "class", "class name" (without a body), "enum", "using", "function", "pointer" or "variable".
        names: Several if the statement declares several variables.
        scope: The qualified name of the namespace or class around it.
        marks: The specifiers before it.
        tokens: The statement without specifiers, and without the body of a class or enum.
        klass: The class whose member it is.
    """

    kind: str
    names: list[str]
    scope: str
    header: str
    line: int
    marks: set[str]
    tokens: Tokens
    parameters: list[str]
    body: Tokens
    klass: "Entity | None" = None
    members: list["Entity"] = field(default_factory=list)

    @property
    def qualified(self) -> str:
        return "::".join([self.scope, *self.names[:1]])

    @property
    def full(self) -> str:
        return self.qualified.replace("::", "_")


def closing(tokens: Tokens, start: int) -> int:
    """Return the index of the bracket that closes the bracket at `start`, which may be an angle."""
    pairs = CLOSING | ({"<": ">"} if tokens[start].text == "<" else {})
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at].text in pairs) - (tokens[at].text in pairs.values())
        if depth == 0:
            return at
    return start


def outside(tokens: Tokens) -> Iterator[int]:
    """Yield the indexes of the tokens that are in no brackets, and of the brackets that open."""
    at = 0
    while at < len(tokens):
        yield at
        is_template = tokens[at].text == "<" and at > 0 and tokens[at - 1].text.isidentifier()
        if tokens[at].text in CLOSING or (is_template and tokens[at - 1].text != "operator"):
            at = closing(tokens, at)
        at += 1


def find(tokens: Tokens, *texts: str) -> int:
    """Return the index of the first of some tokens that is in no brackets, or the number of tokens."""
    return next((at for at in outside(tokens) if tokens[at].text in texts), len(tokens))


def split(tokens: Tokens) -> list[Tokens]:
    """Split at the commas that are in no brackets."""
    parts: list[Tokens] = []
    while tokens:
        at = find(tokens, ",")
        parts.append(tokens[:at])
        tokens = tokens[at + 1 :]
    return parts


def text_of(tokens: Tokens, between: str = "") -> str:
    return between.join(token.text for token in tokens)


def statements(tokens: Tokens) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield each statement of a namespace or class, and separately the body of a namespace or function."""
    start = at = 0
    while at < len(tokens):
        text = tokens[at].text
        if text == ";" or (text == ":" and text_of(tokens[start : min(at, start + 2)]) in ACCESS):
            if start < at:
                yield tokens[start:at], ()
            start = at + 1
        elif text in CLOSING:
            end = closing(tokens, at)
            if text == "{" and has_body(tokens[start:at]):
                yield tokens[start:at], tokens[at + 1 : end]
                start = end + 1
            at = end
        at += 1


def has_body(head: Tokens) -> bool:
    """Return whether a brace after these tokens begins a namespace or a function, neither a type nor a value."""
    if head and head[0].text == "template":
        head = head[closing(head, 1) + 1 :]
    if not head or head[0].text in ("class", "struct", "union", "enum"):
        return False
    if head[0].text == "namespace" or text_of(head) == 'extern"C"':
        return True
    if find(head, "(") == len(head) or find(head, "=") < find(head, "operator", "("):
        return False
    return find(head, ":") == len(head) or head[-1].text in (")", "}")  # else an initializer's


def described(tokens: Tokens, scope: str, header: str) -> Entity | None:
    """Return what a statement declares, or None if Cython never needs it."""
    line, marks, parameters = tokens[0].line, set(), []
    while tokens and tokens[0].text in SPECIFIERS:
        marks.add(tokens[0].text)
        opens = next((at for at in (0, 1) if text_of(tokens[at : at + 1]) in ("[", "(", "<")), None)
        end = 0 if opens is None else closing(tokens, opens)
        if tokens[0].text == "template":
            parameters = [part[find(part, "=") - 1].text for part in split(tokens[2:end])]
        tokens = tokens[end + 1 :]
    first, body = text_of(tokens[:1]), tokens[:0]
    brace, equals, bracket, operator = (find(tokens, text) for text in ("{", "=", "(", "operator"))
    if (
        first in ("", "friend", "static_assert", "typedef", "~")
        or text_of(tokens[-2:]) == "=delete"
    ):
        return None
    if first == "using":
        kind, names = "using", [tokens[1 if equals == 2 else -1].text]
    elif first in ("class", "struct", "union", "enum") and (
        brace < len(tokens) or len(tokens) == 2
    ):
        kind = "enum" if first == "enum" else "class" if brace < len(tokens) else "class name"
        named = tokens[1 : min(find(tokens, ":"), brace)]
        names = [token.text for token in named if token.text not in ("final", "class")][-1:]
        tokens, body = tokens[:brace], tokens[brace + 1 : -1]
    elif bracket < min(equals, brace) and tokens[bracket + 1].text == "*":
        end = closing(tokens, bracket)
        kind, names = "pointer", [tokens[end - 1].text]
        tokens = tokens[: closing(tokens, end + 1) + 1]
    elif bracket < min(equals, brace) or operator < len(tokens):
        kind, names = "function", [text_of(tokens[min(operator, bracket - 1) : bracket])]
    else:
        parts = [part[: find(part, "=", "{", ":")] for part in split(tokens)]
        kind, names = "variable", [part[find(part, "[") - 1].text for part in parts if part]
        tokens = [token for part in parts for token in [*part, Token(",", line)]][:-1]
    return Entity(kind, names, scope, header, line, marks, tokens, parameters, body)


class Headers:
    """The declarations in all headers of the native core, after the preprocessor."""

    def __init__(self) -> None:
        self.entities: dict[str, list[tuple[str, Entity]]] = {}
        """By name: the qualified name, and what has it; for an enumerator its enum."""
        self.included: dict[str, set[str]] = {}
        paths = sorted(NATIVE.rglob("*.hpp"))
        lines = "".join(f'#include "{path.relative_to(NATIVE)}"\n' for path in paths)
        command = [*compiler(), *COMMON, "-E", "-x", "c++", "-"]
        run = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise BuildFailed(f"{run.stderr}the headers in {NATIVE}/ cannot be read")
        tokens: dict[str, list[Token]] = {}
        path, line = "", 0
        for text in run.stdout.split("\n"):
            if found := re.match(r'# (\d+) "(.*?)"', text):
                path, line = found[2], int(found[1]) - 1
            elif path.startswith(f"{NATIVE}/"):
                tokens.setdefault(path, []).extend(
                    Token(word, line) for word in TOKEN.findall(text)
                )
            line += 1
        for path in tokens:
            self.parse(tokens[path], "", path)

    def includes(self, path: str) -> set[str]:
        """Return the paths of a header and of all headers that it includes."""
        if path not in self.included:
            self.included[path] = found = {path}
            for name in re.findall(r'^#include "(.*?)"', Path(path).read_text(), re.MULTILINE):
                found |= self.includes(f"{NATIVE}/{name}")
        return self.included[path]

    def parse(self, tokens: Tokens, scope: str, header: str, klass: Entity | None = None) -> None:
        """Note what a namespace or the public part of a class declares."""
        public = klass is None or klass.tokens[0].text != "class"
        for head, body in statements(tokens):
            if head[0].text in ACCESS:
                public = head[0].text == "public"
            elif head[0].text == "namespace" and len(head) > 1:
                self.parse(body, "::".join(filter(None, [scope, text_of(head[1:])])), header)
            elif public and (entity := described(head, scope, header)):
                entity.klass = klass
                if klass and entity.names:
                    klass.members.append(entity)
                if entity.kind == "class":
                    self.parse(entity.body, entity.qualified, header, entity)
                names = (
                    [part[0].text for part in split(entity.body)] if entity.kind == "enum" else []
                )
                for name in [*entity.names, *names]:
                    self.entities.setdefault(name, []).append((f"{scope}::{name}", entity))

    def meant(self, name: str, scope: str) -> Entity | None:
        """Return what a name means in a scope, if possible with its body."""
        found = self.entities.get(name.rpartition("::")[2], [])
        while scope:
            types = [entity for qualified, entity in found if qualified == f"{scope}::{name}"]
            if here := [entity for entity in types if entity.kind not in ("function", "pointer")]:
                entity = next((entity for entity in here if entity.kind != "class name"), here[0])
                if (
                    entity.kind == "using" and entity.tokens[2].text == "::"
                ):  # `using protobuf::Span;`
                    return self.meant(text_of(entity.tokens[1:]), entity.scope)
                return entity
            scope = scope.rpartition("::")[0]
        return None
