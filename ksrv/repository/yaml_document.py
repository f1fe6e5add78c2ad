"""Parses a YAML file of settings and converts it to structs, with errors that name file, line and key.

`Document` composes the tree of nodes by PyYAML's safe loader. `_build` walks over the tree once, makes plain values,
and remembers the line of each key. Duplicate keys, merge keys, tags of other types and files that grow by aliases are
refused. `Document.convert` converts values by msgspec, and turns an error of msgspec into a sentence. The functions
from `_without_none` on find the type that a key should have, for that sentence.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec
import yaml
from msgspec import inspect

from ksrv.errors import did_you_mean
from ksrv.model.fault import ConfigError, Fault, KeyPath, show_path

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
MAX_DEPTH = 64

_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]{1,3}")

_PATH = re.compile(r"\.(\w+)|\[([0-9]+)\]")
_MISSING = re.compile(r"Object missing required field `(\w+)`")

T = TypeVar("T")


def read_settings_text(path: Path) -> str:
    """Return the text of a settings file.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8 text, or is too long.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None


class Document:
    """A parsed YAML file, or keys that were read from another file.

    Attributes:
        path: The file.
        value: The content as dicts, lists and scalars.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._lines: dict[KeyPath, int] = {}
        # For each key that `take` copied, the document it was in.
        self._taken: dict[str | int, Document] = {}
        # Counted while the values are built: an alias can repeat a large value many times.
        self._nodes = 0
        self._characters = 0
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise ConfigError(
                f"{path}, line {line}: holds the control character {chr(error.character)!r}"
            ) from None
        try:
            node = loader.get_single_node()
            self.value: Any = None if node is None else self._build(loader, node, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            problem = error.problem or error.context or ""
            if "'\\t'" in problem:
                problem += "; indent with spaces, because YAML allows no tabs there"
            else:
                problem += "; a key and its value are written as KEY: VALUE, and keys of one section are indented alike"
            raise ConfigError(f"{path}{where}: {problem}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested more than {MAX_DEPTH} levels deep") from None
        finally:
            loader.dispose()

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Return the parsed content of a file.

        Raises:
            ConfigError: The file cannot be read, is not UTF-8 text, is too long, or is not valid YAML.
        """
        return cls(path, read_settings_text(path))

    @classmethod
    def of(cls, path: Path, value: object, lines: dict[KeyPath, int]) -> "Document":
        """Return a document with values that were read from another kind of file.

        Args:
            lines: The lines of the keys; may be empty.
        """
        made = cls(path, "")
        made.value = value
        made._lines = dict(lines)
        return made

    def take(self, other: "Document", *, fill: bool = False) -> None:
        """Copy the keys of another document. Their errors still name the other document's file and line.

        Args:
            other: A document whose value is a mapping.
            fill: Whether keys that this document has already are kept.
        """
        for key, value in other.value.items():
            if not (fill and key in self.value):
                self.value[key] = value
                self._taken[key] = other._taken.get(key, other)

    @contextmanager
    def naming_faults(self, at: KeyPath = ()) -> Iterator[None]:
        """Turn a `Fault` that is raised in the context into a `ConfigError` with file and line.

        Args:
            at: The path to which the path of the fault is relative.

        Raises:
            ConfigError: A key has a fault.
        """
        try:
            yield
        except Fault as fault:
            self.fail((*at, *fault.path), fault.text)

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        """Raise the error of a key, with the line of the key or of the nearest section around it.

        Raises:
            ConfigError: Always.
        """
        taken = self._taken.get(path[0]) if path else None
        if taken is not None:
            taken.fail(path, message)
        known = [path[:length] for length in range(len(path) + 1) if path[:length] in self._lines]
        line = f", line {self._lines[known[-1]] if known else 1}" if self._lines else ""
        key = f"{show_path(path)}: " if path else ""
        raise ConfigError(f"{self.path}{line}: {key}{message}")

    def convert(self, kind: type[T], value: object, path: KeyPath = ()) -> T:
        """Return a part of the file as a struct.

        Args:
            kind: The struct, whose fields are the known keys.
            value: The part of the file.
            path: The path of the part, for errors.

        Raises:
            ConfigError: A key is unknown, is missing or has a value that does not fit.
        """
        info = inspect.type_info(kind)
        self._check_keys(info, value, path)
        try:
            return msgspec.convert(value, kind, dec_hook=_read_custom)
        except msgspec.ValidationError as error:
            # msgspec's error is one sentence, and a path such as `$.inputs[0].name`.
            text, _, where = str(error).partition(" - at `$")
            below: list[str | int] = [
                int(index) if index else name for name, index in _PATH.findall(where)
            ]
            missing = _MISSING.match(text)
            if missing:
                self.fail((*path, *below, missing[1]), f"this section needs a {missing[1]}")
            for part in below:
                info = _below(info, part)
                value = value[part]  # type: ignore[index]
            custom = isinstance(_without_none(info), inspect.CustomType)
            self.fail((*path, *below), text if custom else _mismatch(info, value))

    def _check_keys(self, info: inspect.Type, value: object, path: KeyPath) -> None:
        """Refuse unknown keys, with a hint that msgspec's error would lack."""
        info = _sections(info)
        if isinstance(info, inspect.ListType) and isinstance(value, list):
            for index, entry in enumerate(value):
                self._check_keys(info.item_type, entry, (*path, index))
        elif isinstance(info, inspect.StructType) and isinstance(value, dict):
            known = {field.encode_name: field.type for field in info.fields}
            for key, entry in value.items():
                if key not in known:
                    hint = (
                        did_you_mean(key, known) or f"; known here are {', '.join(sorted(known))}"
                    )
                    self.fail((*path, str(key)), f"unknown key{hint}")
                self._check_keys(known[key], entry, (*path, key))

    def _build(self, loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node, and remember the lines of the keys in it."""
        self._nodes += 1
        self._lines.setdefault(path, node.start_mark.line + 1)
        if self._nodes > MAX_NODES:
            self.fail(path, f"the file has more than {MAX_NODES} values")
        if len(path) > MAX_DEPTH:
            self.fail(path, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, yaml.MappingNode):
            self._plain_tag(node, path, "tag:yaml.org,2002:map")
            return dict(self._entries(loader, node, path))
        if isinstance(node, yaml.SequenceNode):
            self._plain_tag(node, path, "tag:yaml.org,2002:seq")
            return [
                self._build(loader, child, (*path, index)) for index, child in enumerate(node.value)
            ]
        self._characters += len(node.value)
        if self._characters > MAX_BYTES:
            self.fail(path, f"the file has more than {MAX_BYTES} characters of values")
        # Dates stay texts, and so does 30:45, which YAML 1.1 would read as a number to the base 60.
        if node.tag == "tag:yaml.org,2002:timestamp" or (
            node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and ":" in node.value
        ):
            return node.value
        try:
            value = loader.construct_object(node)
        except yaml.constructor.ConstructorError:
            self.fail(path, f"the tag {node.tag} is not read here")
        except ValueError as error:
            self.fail(path, f"{error}")
        if value is not None and not isinstance(value, (str, int, float, bool)):
            self.fail(path, f"the tag {node.tag} is not read here")
        self._check_text(value, path)
        return value

    def _check_text(self, value: object, path: KeyPath) -> None:
        """Refuse half of a surrogate pair, which an escape can give: UTF-8 cannot encode it."""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                half = value[error.start]
                self.fail(
                    path,
                    f"the text has {half!a}, half of a surrogate pair; write the character itself",
                )

    def _plain_tag(self, node: yaml.Node, path: KeyPath, plain: str) -> None:
        """Refuse a mapping or a list with another tag than the plain tag."""
        if node.tag != plain:
            self.fail(path, f"the tag {node.tag} is not read here")

    def _entries(
        self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: KeyPath
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the keys and values of a mapping."""
        seen: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._lines[(*path, "<<")] = line
                self.fail((*path, "<<"), "merge keys are not read here; write the keys out")
            key = loader.construct_object(key_node) if key_node.id == "scalar" else None
            if not isinstance(key, (str, int, float, bool)):
                self._lines[(*path, "?")] = line
                self.fail((*path, "?"), "a key must be a string or a number")
            self._check_text(key, path)
            entry = (*path, key if isinstance(key, str) else str(key))
            self._lines.setdefault(entry, line)
            if key in seen:
                self._lines[entry] = line
                self.fail(entry, f"written twice; first on line {seen[key]}; remove one of them")
            seen[key] = line
            yield key, self._build(loader, value_node, entry)


def describe(value: object) -> str:
    """Return a short description of a YAML value for errors."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return _shortened(repr(value))


class Custom:
    """The base of types with special rules: `Document.convert` reads their values by `read`.

    Attributes:
        schema: The JSON schema of the values that `read` takes.
    """

    schema: ClassVar[dict[str, Any]]

    @classmethod
    def read(cls, value: object) -> Any:
        """Return the value of a key.

        Raises:
            ValueError: The value does not fit; the text names the expected value.
        """
        raise NotImplementedError


class Number(float, Custom):
    """A finite number within bounds, which may be written as `1e-3`."""

    schema = {"type": "number"}
    low, high = -1.7e308, 1.7e308

    @classmethod
    def read(cls, value: object) -> "Number":
        """Return the number."""
        number = _as_number(value)
        if number is None or not cls.low <= number <= cls.high:
            raise ValueError(
                f"expected a number from {cls.low:g} to {cls.high:g}, found {describe(value)}"
            )
        return cls(number)


class Numbers(tuple[float, ...], Custom):
    """A list of finite numbers."""

    schema = {"type": "array", "items": {"type": "number"}, "minItems": 1}

    @classmethod
    def read(cls, value: object) -> "Numbers":
        """Return the numbers."""
        numbers = [_as_number(entry) for entry in value] if isinstance(value, list) else []
        if not numbers or None in numbers:
            raise ValueError(f"expected a list of numbers, found {_shortened(repr(value))}")
        return cls(number for number in numbers if number is not None)


class NumberOrNumbers(Numbers):
    """A finite number, or a list of them."""

    schema = {"anyOf": [{"type": "number"}, Numbers.schema]}

    @classmethod
    def read(cls, value: object) -> "NumberOrNumbers":
        """Return the numbers."""
        if not isinstance(value, list) and (number := _as_number(value)) is None:
            raise ValueError(f"expected a number or a list of numbers, found {describe(value)}")
        return cls(super().read(value if isinstance(value, list) else [number]))


def _as_number(value: object) -> float | None:
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)  # 1e-3 is a text for YAML 1.1, which wants 1.0e-3
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _read_custom(kind: type[Custom], value: object) -> Any:
    return kind.read(value)


def _without_none(info: inspect.Type) -> inspect.Type:
    """Return a type without None, and without metadata that has no text for errors (`expected`)."""
    while True:
        if isinstance(info, inspect.UnionType):
            rest = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
            if len(rest) != 1:
                return info
            info = rest[0]
        elif isinstance(info, inspect.Metadata) and "expected" not in (info.extra or {}):
            info = info.type
        else:
            return info


def _below(info: inspect.Type, part: str | int) -> inspect.Type:
    """Return the type of a key in a section, or of the entries of a list."""
    info = _without_none(info)
    if isinstance(info, inspect.Metadata):
        return _below(info.type, part)
    if isinstance(info, inspect.UnionType):
        wanted = inspect.ListType if isinstance(part, int) else inspect.StructType
        info = next(kind for kind in map(_bare, info.types) if isinstance(kind, wanted))
    if isinstance(info, inspect.ListType):
        return info.item_type
    assert isinstance(info, inspect.StructType)
    return next(field.type for field in info.fields if field.encode_name == part)


def _bare(info: inspect.Type) -> inspect.Type:
    """Return a type without metadata."""
    return _bare(info.type) if isinstance(info, inspect.Metadata) else info


def _sections(info: inspect.Type) -> inspect.Type:
    """Return the struct or list that a type allows; for any other type the type itself."""
    info = _bare(_without_none(info))
    if isinstance(info, inspect.UnionType):
        kinds = (inspect.StructType, inspect.ListType)
        return next((kind for kind in map(_bare, info.types) if isinstance(kind, kinds)), info)
    return info


def _mismatch(info: inspect.Type, value: object) -> str:
    """Return the sentence about a value that is not of the expected type."""
    info = _without_none(info)
    bare = _bare(info)
    found = describe(value)
    if isinstance(bare, inspect.ListType) and isinstance(value, list):
        found = _shortened(repr(value))
        if bare.max_length is not None and len(value) > bare.max_length:
            return f"has {len(value)} entries; at most {bare.max_length} are read"
    if isinstance(info, inspect.Metadata):
        return f"expected {(info.extra or {})['expected']}, found {found}"
    if isinstance(info, inspect.LiteralType):
        allowed = [str(entry) for entry in info.values]
        return f"expected one of {', '.join(allowed)}, found {found}{did_you_mean(value, allowed)}"
    if isinstance(info, inspect.IntType):
        high = info.le if info.le is not None else (info.lt or 0) - 1
        return f"expected a whole number from {info.ge} to {high}, found {found}"
    words: dict[type[inspect.Type], str] = {
        inspect.BoolType: "true or false",
        inspect.StrType: "a text",
        inspect.ListType: "a list",
    }
    if isinstance(bare, inspect.ListType) and isinstance(bare.item_type, inspect.LiteralType):
        words[inspect.ListType] = f"a list out of {', '.join(map(str, bare.item_type.values))}"
    return f"expected {words.get(type(info), 'keys and values')}, found {found}"


def _shortened(shown: str) -> str:
    return shown if len(shown) <= 64 else shown[:60] + "..."
