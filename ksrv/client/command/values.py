"""Reads the values of inputs from the arguments of `ksrv infer`: files, numbers and texts."""

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
        files: FILE, NAME=FILE or NAME=JSON. Files that are not arrays are the elements of one batch.
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
    """Return the files that are sent, so that masks and boxes can be drawn on them.

    Args:
        values: The result of `values_of`.
    """
    for value in values.values():
        if isinstance(value, list) and all(isinstance(part, bytes) for part in value):
            return value
    return []


def _add(
    found: dict[str, list[Any]], names: Sequence[str], name: str, value: Any, argument: str
) -> None:
    """Add a value to an input. Without a name: to the last input if it has the same type, else to the next input.

    Args:
        found: The values so far, by input.
        names: The declared inputs.
        argument: The argument of the command line, for the error.
    """
    if not name:
        last = next(reversed(found), "")
        if last and isinstance(found[last][-1], type(value)) and not isinstance(value, np.ndarray):
            name = last
        else:
            name = next((name for name in names if name not in found), "")
    if not name:
        raise click.ClickException(f"{argument}: every input of the model has its file already")
    found.setdefault(name, []).append(value)


def _read(argument: str, names: Sequence[str]) -> tuple[str, Any]:
    """Return an input's name, or "", and its value.

    Any name is accepted, because a model may take inputs that it does not declare. The server refuses unknown inputs,
    with the names of the model's inputs.
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
    except OSError:  # the argument is JSON that is too long for a file name
        return False


def _numbers(text: str) -> np.ndarray[Any, Any] | None:
    """Return the numbers in a JSON text, or None if it is not an array of numbers."""
    try:
        value = np.array(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return value if value.dtype.kind in "biuf" else None


def _joined(values: list[Any]) -> Any:
    """Return the values of one input as one value: arrays are concatenated, other values are a batch."""
    if not isinstance(values[0], np.ndarray):
        return values
    try:
        return values[0] if len(values) == 1 else np.concatenate(values)
    except ValueError as error:
        raise click.ClickException(
            f"the arrays of one input do not fit together: {error}"
        ) from error
