"""Protobuf's text format, as `config.pbtxt` is written in it: plain values that remember their lines.

Strategy: one scanner yields tokens with their lines, and a parser that knows no message builds a
mapping in which each key has the list of its values. `Document.convert` then knows from the structs of
`model_keys.py` which keys are single, and names file, line and key in its errors, as for a model.yaml.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from msgspec import inspect

from ksrv.repository.yaml_document import (
    MAX_DEPTH,
    MAX_NODES,
    ConfigError,
    Document,
    KeyPath,
    read_settings_text,
)

_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\n\f\v]|\#[^\n]*)+)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>-?(?:0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?))"
    r"(?![A-Za-z0-9_.])"
    r"|(?P<text>\"(?:[^\"\\\n]|\\[^\n])*\"|'(?:[^'\\\n]|\\[^\n])*')"
    r"|(?P<mark>[{}<>\[\]:;,-])"
)
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9A-Fa-f]{1,2})|u(?P<u4>[0-9A-Fa-f]{4})"
    rb"|U(?P<u8>[0-9A-Fa-f]{8})|(?P<char>.))",
    re.DOTALL,
)
_CHARACTERS = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"?": b"?", b"\\": b"\\", b"'": b"'", b'"': b'"',
}  # fmt: skip
_LONGEST_NUMBER = 64
_TRUTHS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}

T = TypeVar("T")


class Word(str):
    """A name without quotes: a value of an enumeration, or true and false."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def read_text_format(path: Path, kind: type[T], text: str | None = None) -> tuple[T, Document]:
    """Return a file's message as a struct, and the document that knows the lines of its keys.

    Args:
        kind: The struct, whose fields are the keys that are known.
        text: Stands for the file's content; None to read the file.

    Raises:
        ConfigError: It cannot be read, is no UTF-8 text, too long, too deep or no text format, or
            a key is unknown or has a value that does not fit.
    """
    parser = _Parser(path, read_settings_text(path) if text is None else text)
    read = parser.message((), "")
    shaper = _Shaper(path, parser.lines)
    value = shaper.message(inspect.type_info(kind), read, (), ())
    document = Document.of(path, value, shaper.lines)
    return document.convert(kind, value), document


class _Parser:
    """Reads one file.

    Attributes:
        lines: The lines of the keys.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._tokens = self._scan(text)
        self._next = next(self._tokens)
        self._values = 0
        self.lines: dict[KeyPath, int] = {(): 1}

    def message(self, path: KeyPath, end: str) -> dict[str, list[Any]]:
        """Return the keys up to the mark that ends a message, or to the end of the file."""
        found: dict[str, list[Any]] = {}
        while True:
            token = self._take()
            if token.kind == "end" or token.text == end != "":
                if (token.kind == "end") != (end == ""):
                    self._fail(token, f"the file ends where {end!r} is missing")
                return found
            if token.text == "[":
                self._fail(token, "extensions and Any messages are not read here")
            if token.kind != "word":
                self._fail(token, f"expected a key, found {_shown(token)}")
            values = found.setdefault(token.text, [])
            self._field(token, (*path, token.text), values)
            if self._next.text in (";", ","):
                self._take()

    def _field(self, key: _Token, path: KeyPath, values: list[Any]) -> None:
        self.lines.setdefault(path, key.line)
        colon = self._next.text == ":"
        if colon:
            self._take()
        if not colon and self._next.text not in ("{", "<", "["):
            self._fail(self._next, f"expected ':' behind {key.text}, found {_shown(self._next)}")
        if self._next.text != "[":
            self._value((*path, len(values)), values)
            return
        self._take()
        if self._next.text == "]":
            self._take()
            return
        while True:
            self._value((*path, len(values)), values)
            token = self._take()
            if token.text == "]":
                return
            if token.text != ",":
                self._fail(token, f"expected ',' or ']' in a list, found {_shown(token)}")

    def _value(self, path: KeyPath, values: list[Any]) -> None:
        token = self._take()
        self.lines[path] = token.line
        self._values += 1
        if self._values > MAX_NODES:
            self._fail(token, f"the file has more than {MAX_NODES} values")
        # A key and its place in a list are two entries of the path.
        if len(path) > 2 * MAX_DEPTH:
            self._fail(token, f"nested more than {MAX_DEPTH} levels deep")
        if token.text in ("{", "<"):
            values.append(self.message(path, "}" if token.text == "{" else ">"))
        elif token.kind == "text":
            values.append(self._text(token))
        elif token.kind == "number":
            values.append(self._number(token))
        elif token.kind == "word":
            values.append(Word(token.text))
        else:
            self._fail(token, f"expected a value, found {_shown(token)}")

    def _text(self, token: _Token) -> str:
        raw = self._unescaped(token)
        while self._next.kind == "text":  # texts side by side are one
            raw += self._unescaped(self._take())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._fail(token, "the text is not UTF-8")

    def _unescaped(self, token: _Token) -> bytes:
        def replaced(found: re.Match[bytes]) -> bytes:
            if found["octal"]:
                return bytes([int(found["octal"], 8) & 0xFF])
            if found["hex"]:
                return bytes([int(found["hex"], 16)])
            if code := found["u4"] or found["u8"]:
                try:
                    return chr(int(code, 16)).encode()
                except (ValueError, UnicodeEncodeError):
                    self._fail(token, f"\\u{code.decode()} is no character")
            if found["char"] not in _CHARACTERS:
                self._fail(token, f"the escape {found[0].decode('utf-8', 'replace')} is unknown")
            return _CHARACTERS[found["char"]]

        return _ESCAPE.sub(replaced, token.text[1:-1].encode())

    def _number(self, token: _Token) -> int | float:
        text = token.text.lower()
        if len(text) > _LONGEST_NUMBER:
            self._fail(
                token, f"a number of {len(text)} characters; at most {_LONGEST_NUMBER} are read"
            )
        digits = text.removeprefix("-")
        sign = -1 if digits != text else 1
        if digits.startswith("0x"):
            return sign * int(digits, 16)
        if not digits.isdigit():
            return sign * float(digits.rstrip("f"))
        if digits.startswith("0") and digits != "0":
            if set(digits) & {"8", "9"}:
                self._fail(
                    token, f"{token.text} begins with 0, and so is octal, but has other digits"
                )
            return sign * int(digits, 8)
        return sign * int(digits)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _scan(self, text: str) -> Iterator[_Token]:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                shown = _Token("", text[at : at + 1], line)
                if shown.text in ("'", '"'):
                    self._fail(shown, "a text is not ended on its line; add the closing quote")
                self._fail(shown, f"{shown.text!r} is not read here")
            if found.lastgroup != "space":
                yield _Token(str(found.lastgroup), found[0], line)
            line += found[0].count("\n")
            at = found.end()
        yield _Token("end", "", line)

    def _fail(self, token: _Token, message: str) -> NoReturn:
        raise ConfigError(f"{self._path}, line {token.line}: {message}")


class _Shaper:
    """Gives the values the form of a struct: one value where a key is single, else the list.

    Args:
        read: The lines of the keys as they were read.

    Attributes:
        lines: The lines of the keys in their new form.
    """

    def __init__(self, path: Path, read: dict[KeyPath, int]) -> None:
        self._path = path
        self._read = read
        self.lines: dict[KeyPath, int] = {(): 1}

    def message(self, info: inspect.Type, value: Any, at: KeyPath, to: KeyPath) -> Any:
        """Return a message in the form of a struct; unknown keys stay as they are, to be refused."""
        assert isinstance(info, inspect.StructType)
        known = {field.encode_name: _plain(field.type) for field in info.fields}
        shaped = {}
        for key, values in value.items():
            self.lines[(*to, key)] = self._read[(*at, key)]
            shaped[key] = self._field(known.get(key), values, (*at, key), (*to, key))
        return shaped

    def _field(self, info: inspect.Type | None, values: list[Any], at: KeyPath, to: KeyPath) -> Any:
        if isinstance(info, inspect.ListType):
            item = _plain(info.item_type)
            for index in range(len(values)):
                self.lines[(*to, index)] = self._read[(*at, index)]
            return [
                self._one(item, value, (*at, index), (*to, index))
                for index, value in enumerate(values)
            ]
        if info is None or isinstance(info, inspect.AnyType):
            return values
        if len(values) != 1:
            self.fail(to, f"has {len(values)} values; expected one")
        return self._one(info, values[0], (*at, 0), to)

    def _one(self, info: inspect.Type, value: Any, at: KeyPath, to: KeyPath) -> Any:
        if isinstance(info, inspect.StructType) and isinstance(value, dict):
            return self.message(info, value, at, to)
        if isinstance(info, inspect.BoolType):
            if isinstance(value, Word):
                return _TRUTHS.get(value, value)
            return bool(value) if type(value) is int and value in (0, 1) else value
        if isinstance(info, inspect.StrType) and isinstance(value, Word):
            self.fail(to, f"expected a text in quotes, found {value}")
        if isinstance(info, inspect.LiteralType) and isinstance(value, str):
            if not isinstance(value, Word):
                self.fail(to, f"expected a name without quotes, found {value[:64]!r}")
            return str(value)
        return value

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        Document.of(self._path, None, self.lines).fail(path, message)


def _plain(info: inspect.Type) -> inspect.Type:
    """Return a key's type without its metadata, and without None for a key that is left out."""
    while True:
        if isinstance(info, inspect.Metadata):
            info = info.type
        elif isinstance(info, inspect.UnionType):
            [info] = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        else:
            return info


def _shown(token: _Token) -> str:
    if token.kind == "end":
        return "the end of the file"
    return repr(token.text if len(token.text) <= 64 else token.text[:60] + "...")
