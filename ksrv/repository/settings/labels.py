"""Class labels: an `index_to_name.json`, a JSON list, or a text with one label a line."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
MAX_LABELS = 1_000_000


class LabelError(ValueError):
    """A label file that cannot be used."""


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the labels of a file by class index.

    Args:
        path: A `.json` file, or a text file with one label a line.

    Returns:
        The labels; an index that the file leaves out is labelled with its number.

    Raises:
        LabelError: The file cannot be read or has another structure.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LabelError(f"the label file is longer than {MAX_BYTES} bytes")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LabelError(f"the label file cannot be read ({error})") from None
    if path.suffix != ".json":
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LabelError(f"the label file is not JSON ({error})") from None
    if isinstance(value, dict) and list(value) == ["object_type_names"]:
        value = value["object_type_names"]
    if isinstance(value, list):
        return tuple(_label(str(index), entry) for index, entry in enumerate(value))
    if isinstance(value, dict):
        return _by_index(value)
    raise LabelError("the label file must hold a JSON object or list")


def _by_index(value: dict[str, Any]) -> tuple[str, ...]:
    labels: dict[int, str] = {}
    for key, entry in value.items():
        if not (key.isascii() and key.isdigit()) or int(key) >= MAX_LABELS:
            raise LabelError(f"the label file's key {key[:64]!r} is not a class index")
        labels[int(key)] = _label(key, entry)
    return tuple(labels.get(index, str(index)) for index in range(max(labels, default=-1) + 1))


def _label(key: str, entry: Any) -> str:
    label = entry[-1] if isinstance(entry, list) and entry else entry
    if not isinstance(label, str):
        raise LabelError(f"the label of class {key} must be a text or a list that ends with one")
    return label
