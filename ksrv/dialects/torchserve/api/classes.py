"""Finds the classes of a module, and imports a class by name: functions that `ts.utils.util` exports."""

import inspect
from importlib import import_module
from types import ModuleType


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that the module itself defines, in order of their names.

    Args:
        parent_class: If given, only subclasses of this class are returned.
    """
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """Return the class of a dotted name.

    Raises:
        ImportError: The module or class does not exist.
    """
    full = f"{module_prefix}.{class_name}" if module_prefix else class_name
    module_name, _, name = full.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"the class {full!r} cannot be imported: {error}") from error
    assert isinstance(found, type)
    return found
