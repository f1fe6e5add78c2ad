"""Reads class labels: from an `index_to_name.json`, a JSON list, or a text file with one label on each line."""

import json
from pathlib import Path
from typing import Any

from ksrv.model.fault import Fault, KeyPath

MAX_BYTES = 64 * 1024 * 1024
MAX_LABELS = 1_000_000


def read_labels(path: Path, key: KeyPath, *, alphabet: bool = False) -> tuple[str, ...]:
    """Return the labels of a file by class index.

    Args:
        path: A `.json` file, or a text file with one label on each line.
        key: The key that names the file.
        alphabet: Whether each label is a single character, which may be a blank.

    Returns:
        The labels. The label of an index that the file leaves out is the number.

    Raises:
        Fault: The file cannot be read or has another structure.
    """
    try:
        return _read(path, alphabet=alphabet)
    except (OSError, RecursionError, ValueError) as error:
        raise Fault(key, f"{path.name}: the label file cannot be used: {error}") from None


def _read(path: Path, *, alphabet: bool) -> tuple[str, ...]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    text = path.read_text("utf-8-sig")
    if alphabet:
        return tuple(text.removesuffix("\n").split("\n"))
    if path.suffix != ".json":
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    value = json.loads(text)
    # Object detectors list their classes under this key.
    if isinstance(value, dict) and list(value) == ["object_type_names"]:
        value = value["object_type_names"]
    if isinstance(value, list):
        return tuple(label_of(str(index), entry) for index, entry in enumerate(value))
    if isinstance(value, dict):
        return _by_index(value)
    raise ValueError("it must hold a JSON object or list")


def _by_index(value: dict[str, Any]) -> tuple[str, ...]:
    labels: dict[int, str] = {}
    for key, entry in value.items():
        if not (key.isascii() and key.isdigit()) or int(key) >= MAX_LABELS:
            raise ValueError(f"its key {key[:64]!r} is not a class index")
        labels[int(key)] = label_of(key, entry)
    return tuple(labels.get(index, str(index)) for index in range(max(labels, default=-1) + 1))


def label_of(key: str, entry: Any) -> str:
    """Return the label that a JSON file has for a class.

    Raises:
        ValueError: It is neither a text nor a list that ends with a text.
    """
    # The index_to_name.json of ImageNet has ["n01440764", "tench"]: a WordNet id, then the label.
    label = entry[-1] if isinstance(entry, list) and entry else entry
    if not isinstance(label, str):
        raise ValueError(f"the label of class {key} must be a text or a list that ends with one")
    return label
