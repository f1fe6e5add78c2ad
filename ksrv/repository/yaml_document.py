"""A YAML file as plain values that remember their lines, and typed access to its mappings.

Strategy: PyYAML's safe loader composes the tree of nodes, and one walk over it builds the values
and notes each key's line. Errors can then name file, line and key. Duplicate keys, tags beyond the
plain ones, merge keys and trees that grow through aliases are refused.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
MAX_DEPTH = 64

_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]{1,3}")

KeyPath: TypeAlias = tuple[str | int, ...]


class ConfigError(Exception):
    """A settings file that cannot be used; its text names file, line and key."""


def show_path(path: KeyPath) -> str:
    """Return a key path as people write it: `inputs[0].image.mean`."""
    shown = ""
    for entry in path:
        if isinstance(entry, int):
            shown += f"[{entry}]"
        else:
            shown += f".{entry}" if shown else entry
    return shown


class Document:
    """A parsed YAML file.

    Attributes:
        path: The file.
        value: Its content as dicts, lists and scalars.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._lines: dict[KeyPath, int] = {}
        self._nodes = 0
        self._characters = 0
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise ConfigError(
                f"{path}, line {line}: holds the control character {chr(error.character)!r}."
            ) from None
        try:
            node = loader.get_single_node()
            self.value = None if node is None else self._build(loader, node, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            raise ConfigError(f"{path}{where}: {error.problem or error.context}.") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: {' '.join(str(error).split())}.") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested more than {MAX_DEPTH} levels deep.") from None
        finally:
            loader.dispose()

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Return the parsed content of a file.

        Args:
            path: The file.

        Returns:
            The document.

        Raises:
            ConfigError: It cannot be read, is no UTF-8 text, too long, or no valid YAML.
        """
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes.")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{path}, line {line}: not UTF-8 text.") from None
        return cls(path, text)

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        """Raise the error of one key.

        Args:
            path: The key.
            message: What is wrong with it.

        Raises:
            ConfigError: Always.
        """
        line = 1
        for length in range(len(path), -1, -1):
            if path[:length] in self._lines:
                line = self._lines[path[:length]]
                break
        key = f"{show_path(path)}: " if path else ""
        raise ConfigError(f"{self.path}, line {line}: {key}{message}")

    def _build(self, loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath) -> Any:
        self._nodes += 1
        self._lines.setdefault(path, node.start_mark.line + 1)
        if self._nodes > MAX_NODES:
            self.fail(path, f"the file has more than {MAX_NODES} values.")
        if len(path) > MAX_DEPTH:
            self.fail(path, f"nested more than {MAX_DEPTH} levels deep.")
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
            self.fail(path, f"the file has more than {MAX_BYTES} characters of values.")
        # A date is the text that was written, and so is 30:45, which YAML 1.1 takes for base 60.
        if node.tag == "tag:yaml.org,2002:timestamp" or (
            node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and ":" in node.value
        ):
            return node.value
        try:
            value = loader.construct_object(node)
        except yaml.constructor.ConstructorError:
            self.fail(path, f"the tag {node.tag} is not read here.")
        except ValueError as error:
            self.fail(path, f"{error}.")
        if value is not None and not isinstance(value, (str, int, float, bool)):
            self.fail(path, f"the tag {node.tag} is not read here.")
        return value

    def _plain_tag(self, node: yaml.Node, path: KeyPath, plain: str) -> None:
        if node.tag != plain:
            self.fail(path, f"the tag {node.tag} is not read here.")

    def _entries(
        self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: KeyPath
    ) -> Iterator[tuple[Any, Any]]:
        seen: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._lines[(*path, "<<")] = line
                self.fail((*path, "<<"), "merge keys are not read here; write the keys out.")
            key = loader.construct_object(key_node) if key_node.id == "scalar" else None
            if not isinstance(key, (str, int, float, bool)):
                self._lines[(*path, "?")] = line
                self.fail((*path, "?"), "a key must be a string or a number.")
            entry = (*path, key if isinstance(key, str) else str(key))
            self._lines.setdefault(entry, line)
            if key in seen:
                self._lines[entry] = line
                self.fail(entry, f"written twice; first on line {seen[key]}.")
            seen[key] = line
            yield key, self._build(loader, value_node, entry)


def check_aliases(root: yaml.Node) -> None:
    """Refuse a tree that its aliases make large: each of them stands for all that it names.

    Args:
        root: The composed tree, before its values are built.

    Raises:
        yaml.MarkedYAMLError: It has more than `MAX_NODES` values, more than `MAX_BYTES` characters
            or more than `MAX_DEPTH` levels.
    """
    waiting = [(root, 0)]
    count = characters = 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            waiting += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in node.value]
        else:
            characters += len(node.value)
        bound = ""
        if count > MAX_NODES:
            bound = f"{MAX_NODES} values"
        elif characters > MAX_BYTES:
            bound = f"{MAX_BYTES} characters"
        elif depth > MAX_DEPTH:
            bound = f"{MAX_DEPTH} levels"
        if bound:
            raise yaml.MarkedYAMLError(
                problem=f"the file has more than {bound}, with what its aliases repeat",
                problem_mark=node.start_mark,
            )


def describe(value: object) -> str:
    """Return a YAML value as an error shows it: its kind and a short form of it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    shown = repr(value)
    return shown if len(shown) <= 64 else shown[:60] + "..."


class Fields:
    """One mapping of a document: `only` refuses unknown keys, the other methods read known ones."""

    def __init__(self, document: Document, value: object, path: KeyPath = ()) -> None:
        if not isinstance(value, dict):
            document.fail(path, f"expected keys and values, found {describe(value)}.")
        self.document = document
        self.path = path
        self._values: dict[Any, Any] = value

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise the error of one key of this mapping.

        Args:
            key: The key.
            message: What is wrong with it.

        Raises:
            ConfigError: Always.
        """
        self.document.fail((*self.path, key), message)

    def only(self, *known: str) -> None:
        """Refuse every other key.

        Args:
            known: The keys that may be here.

        Raises:
            ConfigError: There is another; the text names the key that was probably meant.
        """
        for key in self._values:
            if key not in known:
                near = _near(key, known)
                expected = "" if near else f"; known here are {', '.join(sorted(known))}"
                self.fail(str(key), f"unknown key{near}{expected}.")

    def value(self, key: str) -> Any:
        """Return the raw value of a key, or None where it is missing or empty."""
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """Return a string."""
        value = self.value(key)
        if value is not None and (not isinstance(value, str) or not value):
            self.fail(key, f"expected a text, found {describe(value)}.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"expected true or false, found {describe(value)}.")
        return value

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(
                key, f"expected a whole number from {low} to {high}, found {describe(value)}."
            )
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """Return a finite number from `low` to `high`."""
        value = self.value(key)
        if value is None:
            return default
        number = self._as_number(value)
        if number is None or not low <= number <= high:
            self.fail(key, f"expected a number from {low:g} to {high:g}, found {describe(value)}.")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers."""
        value = self.value(key)
        if value is None:
            return ()
        numbers = [self._as_number(entry) for entry in value] if isinstance(value, list) else [None]
        if None in numbers or not numbers:
            self.fail(key, f"expected a list of numbers, found {self._show(value)}.")
        return tuple(entry for entry in numbers if entry is not None)

    def choice(self, key: str, default: Any, allowed: Sequence[str]) -> Any:
        """Return one of some words."""
        value = self.value(key)
        if value is None:
            return default
        if value is False and "off" in allowed:
            return "off"  # YAML takes the bare word for false
        if not isinstance(value, str) or value not in allowed:
            self.fail(
                key,
                f"expected one of {', '.join(allowed)}, found {describe(value)}"
                f"{_near(value, allowed)}.",
            )
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.value(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.fail(key, f"expected a list of texts, found {self._show(value)}.")
        return tuple(value)

    def section(self, key: str) -> "Fields | None":
        """Return a mapping below this one."""
        value = self.value(key)
        return None if value is None else Fields(self.document, value, (*self.path, key))

    def sections(self, key: str) -> list["Fields"]:
        """Return a list of mappings below this one."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fail(key, f"expected a list, found {describe(value)}.")
        return [
            Fields(self.document, entry, (*self.path, key, index))
            for index, entry in enumerate(value)
        ]

    @staticmethod
    def _as_number(value: object) -> float | None:
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            value = float(value)  # 1e-3 is a text for YAML 1.1, which wants 1.0e-3
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if math.isfinite(value) else None

    @staticmethod
    def _show(value: object) -> str:
        shown = repr(value) if isinstance(value, list) else describe(value)
        return shown if len(shown) <= 64 else shown[:60] + "..."


def _near(value: object, allowed: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(value), list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
