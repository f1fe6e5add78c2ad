"""Reads the labels in `index_to_name.json`, and puts them into answers: `ts.utils.util`."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ksrv.repository.settings.labels import label_of


def load_label_mapping(mapping_file_path: str) -> dict[str, Any] | None:
    """Read `index_to_name.json`: an object of labels by class index, or with a list `object_type_names`.

    Returns:
        The label for each class index, which is a string; if the file has a list for it, the last element of the list.
        None, with a warning, if the file is missing.

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
        raise Exception(
            f'{path.name} must hold a JSON object of labels by class index, such as {{"0": "cat"}}'
        )
    if "object_type_names" in mapping and isinstance(mapping["object_type_names"], (list, tuple)):
        mapping = {str(index): name for index, name in enumerate(mapping["object_type_names"])}
    for key, value in mapping.items():
        mapping[key] = label_of(key, value)
    return mapping


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: dict[str, Any] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """Return one object {label: probability} for each row, in the order given.

    Args:
        mapping: Labels by class index as a string.
        lbl_classes: The class index of each probability; by default its position in the row.

    Raises:
        Exception: `probs` is not a list, or `mapping` not a dict.
    """
    if not isinstance(probs, list):
        raise Exception("probabilities must be a list with a list of numbers for each row")
    if mapping is not None and not isinstance(mapping, dict):
        raise Exception("the mapping must be a dict of labels by class index, such as {'0': 'cat'}")
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
