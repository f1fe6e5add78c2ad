"""Reads a handler's file without running it: the names that it defines, and the keys of `@settings`.

`@settings(batching={...})` is ksrv's decorator with the keys of model.yaml. A class inherits the settings of its bases,
if these are in files of the model's folders, and may override them; `_ancestors` follows the bases through imports.
Settings that the syntax tree does not show (of an installed base, or of a decorator that is imported in an unusual way)
are found and refused when the model is loaded.
"""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ksrv.errors import did_you_mean
from ksrv.model.fault import ConfigError, KeyPath
from ksrv.repository.settings.keys import ModelKeys
from ksrv.repository.yaml_document import Document

DECORATOR = "settings"
"""The name of ksrv's decorator."""
READ_AT_LOAD = ("inputs", "outputs")
"""Keys whose values may be tensor types and no literals. They are read when the handler is loaded."""

REFUSED = {
    "handler": "the class or function below is the handler",
    "version_policy": "a handler has no versions; model.yaml names the versions of its folder",
}
"""Keys of model.yaml that `@settings` does not take."""

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_MAY_NAME = ast.For | ast.While | ast.With | ast.Match | ast.TryStar | ast.Global
"""Statements at the top level that may define names in ways that are not analysed."""


@dataclass
class HandlerCode:
    """The names in a handler file, from its syntax tree.

    Attributes:
        path: The file.
        folders: The folders in which modules are found that the file imports by their bare names.
        names: The names that the top level defines, with the defining statements.
        open: Whether the file may define more names: by `from m import *`, `for`, `with` or a module's `__getattr__`.
        constants: The names that are assigned a value, which may be a literal, with the value.
        decorators: The names by which the file can call ksrv's `settings`: "settings", "ksrv.settings".
    """

    path: Path
    folders: Sequence[Path]
    names: dict[str, ast.stmt] = field(default_factory=dict)
    open: bool = False
    constants: dict[str, ast.expr] = field(default_factory=dict)
    decorators: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path, folders: Sequence[Path]) -> "HandlerCode":
        """Return the code of a file.

        Args:
            folders: The folders in which modules are found that the file imports by their bare names.

        Raises:
            ConfigError: The file cannot be read.
        """
        try:
            tree = ast.parse(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except SyntaxError as error:
            raise ConfigError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        made = cls(path, folders)
        for node in _top_level(tree.body):
            made._note(node)
        return made

    def _note(self, node: ast.stmt) -> None:
        """Add the names that a statement defines."""
        self.open = self.open or isinstance(node, _MAY_NAME)
        if isinstance(node, _Definition):
            self.names[node.name] = node
            self.open = self.open or node.name == "__getattr__"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self.open = self.open or alias.name == "*"
                bound = alias.asname or alias.name.partition(".")[0]
                self.names[bound] = node
                if isinstance(node, ast.Import) and alias.name == "ksrv":
                    self.decorators.add(f"{bound}.{DECORATOR}")
                elif getattr(node, "module", "") == "ksrv" and alias.name == DECORATOR:
                    self.decorators.add(bound)
                elif getattr(node, "module", "") == "ksrv" and alias.name == "*":
                    self.decorators.add(DECORATOR)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        self.names[part.id] = node
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.value is not None:
                self.constants[targets[0].id] = node.value

    @property
    def functions(self) -> set[str]:
        """The names of its functions."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {name for name, node in self.names.items() if isinstance(node, kinds)}

    def only_decorated(self) -> str:
        """Return the only class or function with `@settings`, also inherited; "" if the file has none.

        A class is not counted if it is the base of another such class in the file.

        Raises:
            ConfigError: The file has several.
        """
        defined = [name for name, node in self.names.items() if isinstance(node, _Definition)]
        found = [
            at for at in defined if any(code._call(name) for code, name in self._ancestors(at))
        ]
        bases = {
            base
            for name in found
            for code, base in self._ancestors(name)
            if base != name and code.path == self.path
        }
        found = [name for name in found if name not in bases]
        if len(found) > 1:
            raise ConfigError(
                f"{self.path} holds several handlers ({', '.join(found)}); name one: "
                f"{self.path}:NAME"
            )
        return found[0] if found else ""

    def check(self, name: str) -> None:
        """Refuse a name that the file's top level does not define.

        Args:
            name: The name, or "".

        Raises:
            ConfigError: The file cannot have the name.
        """
        if name and name not in self.names and not self.open:
            defined = [at for at, node in self.names.items() if isinstance(node, _Definition)]
            hint = (
                did_you_mean(name, self.names)
                or f"; it has {', '.join(defined) or 'no class and no function'}"
            )
            raise ConfigError(f"{self.path} has no {name} at its top level{hint}")

    def settings(self, name: str) -> Document:
        """Return the keys of a handler's `@settings` and of its bases' `@settings`, which it overrides.

        Args:
            name: A class or function of the file, or "" for none.

        Returns:
            The keys, each checked alone. Errors name the file and the line of a key.

        Raises:
            ConfigError: A key is unknown, has a wrong value or is not for handlers.
        """
        document = Document.of(self.path, {}, {})
        for code, ancestor in reversed(list(self._ancestors(name))):
            keys, lines = code._decorated_keys(ancestor)
            part = Document.of(code.path, keys, lines)
            for key in keys.keys() & REFUSED.keys():
                part.fail((key,), REFUSED[key])
            part.convert(ModelKeys, keys)  # only to raise for a wrong key or value
            document.take(part)
        return document

    def _ancestors(
        self, name: str, seen: frozenset[Any] = frozenset()
    ) -> Iterator[tuple["HandlerCode", str]]:
        """Yield a class or function and its bases, nearest first: the name, with the code of the defining file.

        Args:
            seen: The names that are being followed, because files may import each other in circles.
        """
        node = self.names.get(name)
        if (self.path, name) in seen:
            return
        seen |= {(self.path, name)}
        if isinstance(node, _Definition):
            yield self, name
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                yield from self._base(ast.unparse(base), seen)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from self._base(name, seen)

    def _base(self, dotted: str, seen: frozenset[Any]) -> Iterator[tuple["HandlerCode", str]]:
        """Yield a base and its bases.

        Args:
            dotted: The base as the file writes it: a name of this file, or of a file that it imports.
        """
        first, _, rest = dotted.partition(".")
        node = self.names.get(first)
        if isinstance(node, ast.ImportFrom):
            alias = next(item for item in node.names if first in (item.asname, item.name))
            module = ("." * node.level) + (node.module or "")
            if rest:  # `from package import module`, and the base is module.Name
                code = self._imported(
                    f"{module.rstrip('.')}.{alias.name}" if node.module else module + alias.name
                )
                name = rest
            else:
                code, name = self._imported(module), alias.name
        elif isinstance(node, ast.Import) and rest:
            alias = next(
                item for item in node.names if first in (item.asname, item.name.partition(".")[0])
            )
            module, _, name = f"{alias.name if alias.asname else first}.{rest}".rpartition(".")
            code = self._imported(module)
        else:
            code, name = self, dotted
        if code is not None and name.isidentifier():
            yield from code._ancestors(name, seen)

    def _imported(self, module: str) -> "HandlerCode | None":
        """Return the code of a module of the model's folders; None for any other module."""
        name = module.lstrip(".")
        level = len(module) - len(name)
        folders = [self.path.parents[level - 1]] if level else self.folders
        for folder in folders:
            base = folder.joinpath(*name.split(".")) if name else folder
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    try:
                        return HandlerCode.read(file, self.folders)
                    except ConfigError:
                        return None  # the load will report the fault
        return None

    def _decorated_keys(self, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
        """Return the keys of a name's `@settings` without its bases, and the lines of the keys."""
        call = self._call(name)
        keys: dict[str, Any] = {}
        lines: dict[KeyPath, int] = {}
        if call is None:
            return keys, lines
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ConfigError(
                f"{self.path}, line {call.lineno}: {DECORATOR} takes keys and values: "
                f"{DECORATOR}(batching={{...}})"
            )
        for keyword in call.keywords:
            key = str(keyword.arg)
            lines[(key,)] = keyword.value.lineno
            if key in READ_AT_LOAD:
                continue
            keys[key] = self._literal(key, keyword.value)
        return keys, lines

    def _call(self, name: str) -> ast.Call | None:
        """Return the call of `@settings` that decorates a class or function, or None."""
        node = self.names.get(name)
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in self.decorators:
                return decorator
        return None

    def _literal(self, key: str, value: ast.expr) -> Any:
        """Return the value of a key. The names of constants in it are replaced by their values."""
        try:
            filled = _Constants(self.constants).visit(copy.deepcopy(value))
            return _plain(ast.literal_eval(filled))
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(
                f"{self.path}, line {value.lineno}: {key}: expected a literal, or a name that the "
                f"file sets to one, because it is read without running the file; found "
                f"{ast.unparse(value)[:64]}"
            ) from None


def installed_file(module: str) -> Path | None:
    """Return the file of an installed module without importing anything; None for a module without a Python file."""
    path: Sequence[str] | None = None
    found = None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:length]), path)
        if found is None:
            return None
        path = found.submodule_search_locations
        if path is None and length < len(parts):
            return None
    origin = found.origin if found is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


class _Constants(ast.NodeTransformer):
    """Replaces the names of constants by their values."""

    def __init__(self, constants: Mapping[str, ast.expr]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._constants.get(node.id, node)


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of the top level, including the statements in `if`, `try` and `with`."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                found += _top_level(getattr(node, inner, []))
        for handler in getattr(node, "handlers", ()):
            found += _top_level(handler.body)
    return found


def _plain(value: Any) -> Any:
    """Return a literal in the form of YAML values: tuples become lists."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
