"""Finds the handler that a manifest names, and returns a function `entry(data, context)`: its entry point.

The rules are TorchServe's: a module-level function wins over a class, the module may define one class only, and the
entry point is the `handle` of an instance. Unlike TorchServe, ksrv reports the error of a failed import in the user's
module unchanged.
"""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ksrv.dialects.foreign_runner import find_module
from ksrv.dialects.torchserve.api.classes import list_classes_from_module

Entry = Callable[[Any, Any], Any]

BUILT_IN = ("base_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier")  # fmt: skip
"""The handlers of `ts.torch_handler`, each in a module of its name."""


class EntryError(ValueError):
    """A handler that has no usable entry point."""


def find_entry(handler: str, folder: Path, context: Any) -> tuple[Entry, Any]:
    """Return the entry point and the object it belongs to, already initialized.

    Args:
        handler: `file.py`, `file`, any of these with `:function`, or a built-in's name.
        folder: The archive's folder, which is first on `sys.path`.
        context: The context for `initialize`.

    Returns:
        The entry point, and the handler object, or None for a module-level function.

    Raises:
        EntryError: No usable entry point was found.
        ImportError: The user's module, or something that it imports, is missing.
    """
    if handler in BUILT_IN:
        module = import_module(f"ts.torch_handler.{handler}")
        return _initialized(getattr(module, handler.title().replace("_", "")), handler, context)
    file, _, function = handler.partition(":")
    module = _module(file, folder)
    wanted = function or "handle"
    found = getattr(module, wanted, None)
    if callable(found) and not inspect.isclass(found):
        found(None, context)  # TorchServe initializes a function by a call without data
        return found, None
    if function:
        raise EntryError(
            f"{file} has no function {function!r}, which the handler {handler!r} names; define it, or name "
            f"another in the archive's handler"
        )
    classes = list_classes_from_module(module)
    if len(classes) != 1:
        names = [cls.__name__ for cls in classes]
        raise EntryError(
            "Expected only one class in custom service code or a function entry point"
            f" {names} in {file}; define handle(data, context), or one class with initialize and handle"
        )
    return _initialized(classes[0], file, context)


def _initialized(cls: type, file: str, context: Any) -> tuple[Entry, Any]:
    """Make and initialize a handler object; return its entry point and the object."""
    service = cls()
    # From the instance, because `__init__` may replace `handle`, as for micro-batching.
    entry = getattr(service, "handle", None)
    if not callable(entry):
        raise EntryError(
            f"Expect handle method in class {cls.__name__}, defined in {file}; add handle(self, data, context)"
        )
    initialize = getattr(service, "initialize", None)
    if not callable(initialize):
        raise EntryError(
            f"{cls.__name__} in {file} has no initialize method; add initialize(self, context)"
        )
    initialize(context)
    return entry, service


def _module(file: str, folder: Path) -> ModuleType:
    path = Path(file)
    parent = folder / path.parent
    name = path.name.removesuffix(".py")
    if find_module(name.partition(".")[0], [str(parent)]) is None:
        raise EntryError(f"the handler {file!r} is not in the archive; name a file inside of it")
    if str(parent) not in sys.path:
        sys.path.insert(0, str(parent))
    return import_module(name)
