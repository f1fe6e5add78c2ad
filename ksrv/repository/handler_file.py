"""A model that is one Python file: `app.py` or `app.py:Cats`, as a path of `ksrv serve`.

Nothing of the file is run here: its names, the files that it imports and the literals of its
`@settings` are read from its syntax tree. The settings are those of a model.yaml, with the same
checks; the file's own folder is the model's.
"""

import ast
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.repository.entry import ModelEntry
from ksrv.repository.model_keys import ModelKeys
from ksrv.repository.model_yaml import read_model_keys
from ksrv.repository.torchserve.detection import as_torchserve, imports_ts
from ksrv.repository.yaml_document import ConfigError, Document, KeyPath, near
from ksrv.source import ModelConfig, ModelSource

DECORATOR = "settings"
READ_AT_LOAD = ("inputs", "outputs")
"""Keys that may hold tensor types, which the handler reads when it is loaded."""

REFUSED = {
    "handler": "the class or function below is the handler",
    "version_policy": "a file has no versions",
}
NO_SETTINGS: Mapping[str, Any] = {}

_TARGET = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?", re.DOTALL)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def handler_target(path: Path) -> tuple[Path, str] | None:
    """Return the file and the name of `FILE.py[:NAME]`, or None for any other path.

    Args:
        path: A path of the command line.
    """
    found = _TARGET.fullmatch(str(path))
    return None if found is None else (Path(found[1]), found[2] or "")


def model_name(file: Path, name: str) -> str:
    """Return the name that a handler file is served under: `app.py:ImageCats` as `image_cats`.

    Args:
        file: The file.
        name: The name of the class or function, or "" for the file's own name.
    """
    return _WORDS.sub("_", name).lower().strip("_") if name else file.stem


def handler_file(
    file: Path, name: str, served_as: str, given: Mapping[str, Any] = NO_SETTINGS
) -> ModelEntry:
    """Return the entry of a handler file.

    Args:
        file: The file.
        name: The class or function in it, or "" for its only handler.
        served_as: The model's name.
        given: Settings that win over those of the file.

    Raises:
        ConfigError: The file cannot be read, lacks the name, or has settings that cannot be.
    """
    path = file.absolute()
    code = _Code.read(path)
    name = name or code.only_decorated()
    root = _top_folder(path)
    keys, lines = code.settings(name)
    keys |= given
    for key in keys.keys() & REFUSED.keys():
        Document.of(path, keys, lines).fail((key,), REFUSED[key])
    code.check(name)
    relative = str(path.relative_to(root))
    keys["handler"] = f"{relative}:{name}" if name else relative
    document = Document.of(path, keys, lines)
    config = read_model_keys(document, document.convert(ModelKeys, keys), root)
    if imports_ts(path):  # TorchServe takes the one class of a file, and names functions only
        whole = name if name in code.functions else ""
        config = replace(config, handler=f"{path}:{whole}" if whole else str(path))
        named = keys.get("executor") is not None
        config = as_torchserve(config, path.parent, root, named, name=served_as)
    files = (*sorted(map(str, imported_files(path, root))), *_named_files(config))
    source = ModelSource(
        name=served_as, version="", folder=root, root=root, config=config, files=files
    )
    return ModelEntry(served_as, {"": source}, path=path)


def imported_files(file: Path, root: Path) -> set[Path]:
    """Return a Python file and the files below its folder that it imports, however indirectly.

    Args:
        file: The file.
        root: The folder.
    """
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # importing it says why
        for dotted in _imports(tree, path, root):
            for length in range(1, len(dotted) + 1):
                base = root.joinpath(*dotted[:length])
                for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                    if candidate.is_file():
                        waiting.append(candidate)
    return found


def _imports(tree: ast.Module, path: Path, root: Path) -> list[tuple[str, ...]]:
    dotted: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base: tuple[str, ...] = ()
            if node.level:
                folders = path.relative_to(root).parts[:-1]
                if node.level > len(folders) + 1:
                    continue
                base = folders[: len(folders) - node.level + 1]
            base += tuple((node.module or "").split(".")) if node.module else ()
            dotted += [base, *((*base, alias.name) for alias in node.names)]
    return [one for one in dotted if one]


def _named_files(config: ModelConfig) -> tuple[str, ...]:
    named = [config.model] if config.model else []
    return (*named, *(config.warmup if isinstance(config.warmup, tuple) else ()))


def _top_folder(path: Path) -> Path:
    """Return the folder that a file is imported from: that of the outermost package it is in."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder


@dataclass
class _Code:
    """What the syntax tree of a handler file says.

    Attributes:
        path: The file.
        names: The names that its top level sets, with the statements that do.
        open: Whether more names may come, by `from m import *`.
        constants: The names that are set to literals.
        makers: How the file calls ksrv's `settings`: "settings", "ksrv.settings".
    """

    path: Path
    names: dict[str, ast.stmt] = field(default_factory=dict)
    open: bool = False
    constants: dict[str, ast.expr] = field(default_factory=dict)
    makers: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> "_Code":
        try:
            tree = ast.parse(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except SyntaxError as error:
            raise ConfigError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        made = cls(path)
        for node in _top_level(tree.body):
            made._note(node)
        return made

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self.names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self.open = self.open or alias.name == "*"
                bound = alias.asname or alias.name.partition(".")[0]
                self.names[bound] = node
                if isinstance(node, ast.Import) and alias.name == "ksrv":
                    self.makers.add(f"{bound}.{DECORATOR}")
                elif getattr(node, "module", "") == "ksrv" and alias.name == DECORATOR:
                    self.makers.add(bound)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for one in ast.walk(target):
                    if isinstance(one, ast.Name):
                        self.names[one.id] = node
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.value is not None:
                self.constants[targets[0].id] = node.value

    @property
    def functions(self) -> set[str]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {name for name, node in self.names.items() if isinstance(node, kinds)}

    def only_decorated(self) -> str:
        """Return the only name with `@settings`, or "" where the file has none."""
        found = [name for name in self.names if self._call(name) is not None]
        if len(found) > 1:
            raise ConfigError(
                f"{self.path} holds several handlers ({', '.join(found)}); name one: "
                f"{self.path}:NAME"
            )
        return found[0] if found else ""

    def check(self, name: str) -> None:
        """Refuse a name that the file's top level does not set."""
        if name and name not in self.names and not self.open:
            hint = near(name, self.names)
            raise ConfigError(f"{self.path} has no {name} at its top level{hint}")

    def settings(self, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
        """Return the literals of a name's `@settings`, and the lines of its keys."""
        call = self._call(name)
        keys: dict[str, Any] = {}
        lines: dict[KeyPath, int] = {}
        if call is None:
            return keys, lines
        if call.args or any(one.arg is None for one in call.keywords):
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
        node = self.names.get(name)
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in self.makers:
                return decorator
        return None

    def _literal(self, key: str, value: ast.expr) -> Any:
        try:
            filled = _Constants(self.constants).visit(copy.deepcopy(value))
            return _plain(ast.literal_eval(filled))
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(
                f"{self.path}, line {value.lineno}: {key}: expected a literal, or a name that the "
                f"file sets to one, because it is read without running the file; found "
                f"{ast.unparse(value)[:64]}"
            ) from None


class _Constants(ast.NodeTransformer):
    """Puts the literals in the places of the names that stand for them."""

    def __init__(self, constants: Mapping[str, ast.expr]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._constants.get(node.id, node)


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of the top level, those in `if` and `try` included."""
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
    """Return a literal as YAML would have it: tuples are lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
