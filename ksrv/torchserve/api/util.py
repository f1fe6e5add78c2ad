"""Small functions and errors that TorchServe handlers import: `ts.utils.util` and its neighbours."""

import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import yaml

from ksrv.handlers.builtin import tokenizer
from ksrv.handlers.compile import BACKENDS

F = TypeVar("F", bound=Callable[..., Any])

CLEANUP_REGEX = tokenizer.CLEANUP_REGEX


PT2Backend = StrEnum("PT2Backend", {name.upper(): name for name in BACKENDS})  # type: ignore[misc]
"""The backends of torch.compile that TorchServe knows."""


class PredictionException(Exception):
    """An error whose status and text the client sees.

    Args:
        message: The text.
        error_code: The HTTP status.
    """

    def __init__(self, message: str, error_code: int = 500) -> None:
        self.message = message
        self.error_code = error_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that the module itself defines, in order of their names.

    Args:
        module: The module to look into.
        parent_class: Only its subclasses, where given.
    """
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]


def load_label_mapping(mapping_file_path: str) -> dict[str, Any] | None:
    """Read `index_to_name.json`.

    Returns:
        Labels by index as a string; of a list value the last element counts. None, with a warning,
        when the file is missing.

    Raises:
        Exception: The file is not an object of strings and lists.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        warnings.warn(
            f"{path.name} is missing: answers will show class indices instead of labels",
            stacklevel=2,
        )
        return None
    mapping = json.loads(path.read_text())
    if not isinstance(mapping, dict):
        raise Exception(f"{path.name} must hold an object of labels by class index")
    if "object_type_names" in mapping and isinstance(mapping["object_type_names"], (list, tuple)):
        mapping = {str(index): name for index, name in enumerate(mapping["object_type_names"])}
    for key, value in mapping.items():
        label = value[-1] if isinstance(value, list) and value else value
        if not isinstance(label, str):
            raise Exception(
                f"{path.name}: the label of {key!r} must be a string or a list, not {value!r}"
            )
        mapping[key] = label
    return mapping


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: dict[str, Any] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """Return one object {label: probability} for each row, in the order given.

    Args:
        probs: Probabilities, one list for each row.
        mapping: Labels by class index as a string.
        lbl_classes: The class of each probability; without them its position.

    Raises:
        Exception: `probs` is not a list, or `mapping` not a dict.
    """
    if not isinstance(probs, list):
        raise Exception("probabilities must be a list of lists")
    if mapping is not None and not isinstance(mapping, dict):
        raise Exception("the mapping must be a dict of labels by class index")
    if lbl_classes is None:
        lbl_classes = [list(range(len(row))) for row in probs]
    labels = mapping or {}
    return [
        {
            str(labels.get(str(index), index)): value
            for index, value in zip(classes, row, strict=False)
        }
        for classes, row in zip(lbl_classes, probs, strict=False)
    ]


def check_valid_pt2_backend(backend: str) -> bool:
    """Tell whether TorchServe knows the torch.compile backend."""
    if backend in list(PT2Backend):
        return True
    warnings.warn(f"{backend!r} is not a backend of torch.compile that is known here", stacklevel=2)
    return False


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Read a YAML file with the safe loader; an empty one is `{}`."""
    return yaml.safe_load(Path(yaml_file_path).read_text()) or {}


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """Return the class of a dotted name.

    Raises:
        ImportError: There is no such module or class.
    """
    full = f"{module_prefix}.{class_name}" if module_prefix else class_name
    module_name, _, name = full.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"there is no class {full!r}: {error}") from error
    assert isinstance(found, type)
    return found


def deprecated(version: str, replacement: str) -> Callable[[F], F]:
    """Mark a function that warns when it is called."""

    def mark(function: F) -> F:
        from functools import wraps

        @wraps(function)
        def warn(*arguments: Any, **options: Any) -> Any:
            warnings.warn(
                f"{function.__name__} has been deprecated since {version}: use {replacement}",
                DeprecationWarning,
                stacklevel=2,
            )
            return function(*arguments, **options)

        return warn  # type: ignore[return-value]

    return mark


def ngrams_iterator(tokens: Sequence[str], ngrams: int) -> Any:
    """Yield the tokens, then their n-grams up to the given length, joined by blanks."""
    return tokenizer.ngrams(tokens, ngrams)
