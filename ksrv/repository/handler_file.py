"""Reads a model that is one Python file: `app.py` or `app.py:Cats`, as a path of `ksrv serve`.

The file is not run here: `handler_code.py` reads its names and the keys of its `@settings` from the syntax tree. These
are keys of model.yaml, with the same checks. The folder of the file is the model's folder, and the files that it
imports from there are the files of the version.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksrv.model.config import ModelConfig
from ksrv.repository.entry import ModelEntry, unversioned
from ksrv.repository.format import NO_FORMATS, Formats
from ksrv.repository.handler_code import HandlerCode
from ksrv.repository.settings.keys import ModelKeys
from ksrv.repository.settings.values import read_model_keys
from ksrv.repository.yaml_document import Document

NO_SETTINGS: Mapping[str, Any] = {}
_GIVEN = Path("the settings of --model-settings or serve()")
"""The name, in errors, of settings that are given in addition to the file."""

_TARGET = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?", re.DOTALL)
"""FILE.py, or FILE.py:NAME."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""The places between the words of a class name."""


def handler_target(path: Path) -> tuple[Path, str] | None:
    """Return the file and the name of `FILE.py[:NAME]`, or None for any other path."""
    found = _TARGET.fullmatch(str(path))
    return None if found is None else (Path(found[1]), found[2] or "")


def model_name(file: Path, name: str) -> str:
    """Return the name that a handler file is served under: `app.py:ImageCats` as `image_cats`.

    Args:
        name: The name of the class or function, or "" for the file's name.
    """
    return _WORDS.sub("_", name).lower().strip("_") if name else file.stem


def handler_file(
    file: Path,
    name: str,
    served_as: str,
    given: Mapping[str, Any] = NO_SETTINGS,
    formats: Formats = NO_FORMATS,
) -> ModelEntry:
    """Return the entry of a handler file.

    Args:
        name: The class or function in it, or "" for its only handler.
        given: Settings that override the settings of the file.
        formats: The readers of other servers' handlers.

    Raises:
        ConfigError: The file cannot be read, lacks the name, or has wrong settings.
    """
    path = file.absolute()
    root = _top_folder(path)
    code = HandlerCode.read(path, [root])
    name = name or code.only_decorated()
    document = code.settings(name)
    code.check(name)
    relative = str(path.relative_to(root))
    document.take(Document.of(_GIVEN, dict(given), {}))
    document.value["handler"] = f"{relative}:{name}" if name else relative
    keys = document.value
    config = read_model_keys(document, document.convert(ModelKeys, keys), root, formats.files)
    function = name if name in code.functions else ""
    with document.naming_faults():
        config = formats.adopt(
            config, folder=path.parent, root=root, name=served_as, function=function
        )
    files = (*sorted(map(str, imported_files(path, root))), *_named_files(config))
    return unversioned(served_as, path, root, config, files=files)


def imported_files(file: Path, root: Path) -> set[Path]:
    """Return a Python file and the files below its folder that it imports, however indirectly."""
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
            continue  # the load will report the fault
        for dotted in _imports(tree, path, root):
            for length in range(1, len(dotted) + 1):
                base = root.joinpath(*dotted[:length])
                for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                    if candidate.is_file():
                        waiting.append(candidate)
    return found


def _imports(tree: ast.Module, path: Path, root: Path) -> list[tuple[str, ...]]:
    """Return the modules that a file imports, each as the parts of its absolute name.

    The names in `from a import b` are included, because they may be modules, too.
    """
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
    return [parts for parts in dotted if parts]


def _named_files(config: ModelConfig) -> tuple[str, ...]:
    """Return the files that the settings name: the model file and the samples of the warm-up."""
    named = [config.model] if config.model else []
    return (*named, *(config.warmup if isinstance(config.warmup, tuple) else ()))


def _top_folder(path: Path) -> Path:
    """Return the folder from which a file is imported: the folder of its outermost package, or of the file."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder
