"""The values that `ksrv infer` sends, from the files and texts of its command line."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

STDIN = "-"


def values_of(
    files: Sequence[str], texts: Sequence[str], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a value for each input that the command line names.

    Args:
        files: FILE, NAME=FILE or NAME=JSON; files that are no arrays follow each other in one batch.
        texts: TEXT or NAME=TEXT.

    Raises:
        click.ClickException: A file cannot be read, or is for an unknown input.
    """
    names = [str(entry["name"]) for entry in metadata.get("inputs", ())] or ["data"]
    found: dict[str, list[Any]] = {}
    for argument in files:
        name, value = _read(argument, names)
        _add(found, names, name, value, argument)
    for argument in texts:
        name, equals, text = argument.partition("=")
        named = bool(equals) and name in names
        _add(found, names, name if named else "", text if named else argument, argument)
    return {name: _joined(values) for name, values in found.items()}


def images_of(values: Mapping[str, Any]) -> list[bytes]:
    """Return the files that were sent, to draw masks and boxes on.

    Args:
        values: The values of `values_of`.
    """
    for value in values.values():
        if isinstance(value, list) and all(isinstance(one, bytes) for one in value):
            return value
    return []


def _add(
    found: dict[str, list[Any]], names: Sequence[str], name: str, value: Any, argument: str
) -> None:
    if not name:
        last = next(reversed(found), "")
        if last and isinstance(found[last][-1], type(value)) and not isinstance(value, np.ndarray):
            name = last
        else:
            name = next((one for one in names if one not in found), "")
    if not name:
        raise click.ClickException(f"{argument}: every input of the model has its file already")
    found.setdefault(name, []).append(value)


def _read(argument: str, names: Sequence[str]) -> tuple[str, Any]:
    """Return an input's name, or "", and the content of its file.

    A model may take inputs that it does not declare, so every name is taken; the server refuses an unknown
    input, with the names of the model's inputs.
    """
    name, equals, rest = argument.partition("=")
    if not equals or (name not in names and _is_file(Path(argument))):
        name, rest = "", argument
    if rest == STDIN:
        return name, sys.stdin.buffer.read()
    path = Path(rest)
    if not _is_file(path):
        if name and (value := _numbers(rest)) is not None:
            return name, value
        raise click.ClickException(
            f"no such file: {path}; expected "
            + (
                f"{name}=FILE or {name}=JSON"
                if name
                else "FILE, NAME=FILE or NAME=JSON, such as x=[1,2,3]"
            )
        )
    try:
        if path.suffix == ".npy":
            return name, np.load(path, allow_pickle=False)
        return name, path.read_bytes()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # what is meant as JSON may be too long for a name
        return False


def _numbers(text: str) -> np.ndarray[Any, Any] | None:
    """Return the numbers in a JSON text, or None if it is not an array of numbers."""
    try:
        value = np.array(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return value if value.dtype.kind in "biuf" else None


def _joined(values: list[Any]) -> Any:
    """Return the values of one input as one: arrays one behind the other, all else as a batch."""
    if not isinstance(values[0], np.ndarray):
        return values
    try:
        return values[0] if len(values) == 1 else np.concatenate(values)
    except ValueError as error:
        raise click.ClickException(
            f"the arrays of one input do not fit together: {error}"
        ) from error
