"""The bodies of `ksrv infer`: files into a request, and an answer into lines of text."""

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from ksrv._native.tensor import bytes_tensor, datatype
from ksrv.datatypes import NAME_BY_DTYPE

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


@dataclass
class Payload:
    """One input of the request and its bytes."""

    name: str
    datatype: str
    shape: list[int]
    blocks: list[bytes] = field(default_factory=list)

    @property
    def header(self) -> dict[str, Any]:
        """Its entry in the JSON header."""
        size = sum(len(block) for block in self.blocks)
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": self.shape,
            "parameters": {"binary_data_size": size},
        }


def _wire_datatype(dtype: np.dtype[Any]) -> str:
    name = NAME_BY_DTYPE.get(dtype)
    if name is None:
        raise click.ClickException(f"arrays of {dtype} have no place in the protocol")
    return name


def _payload_of_array(name: str, path: Path) -> Payload:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return Payload(name, _wire_datatype(array.dtype), list(array.shape), [array.tobytes()])


def _payload_of_images(name: str, paths: list[Path]) -> Payload:
    blocks = []
    for path in paths:
        content = path.read_bytes()
        blocks += [struct.pack("<I", len(content)), content]
    return Payload(name, "BYTES", [len(paths)], blocks)


def _assign(files: tuple[str, ...], names: list[str]) -> list[tuple[str, list[Path]]]:
    """Give each input its files: NAME=FILE as named, images together, arrays one by one.

    A model may take inputs that it does not declare, so every name is taken; an input that it does not
    take is refused by the server, which says what it has.
    """
    assigned: dict[str, list[Path]] = {}
    for text in files:
        name, equals, rest = text.partition("=")
        if equals and (name in names or not Path(text).is_file()):
            assigned.setdefault(name, []).append(Path(rest))
            continue
        path = Path(text)
        last = next(reversed(assigned), None)
        joins = last is not None and path.suffix.lower() in IMAGE_SUFFIXES
        if joins and assigned[str(last)][-1].suffix.lower() in IMAGE_SUFFIXES:
            assigned[str(last)].append(path)
            continue
        free = [name for name in names if name not in assigned]
        if not free:
            raise click.ClickException(f"{path}: every input of the model has its file already")
        assigned[free[0]] = [path]
    return list(assigned.items())


def build_request(files: tuple[str, ...], model: dict[str, Any]) -> tuple[bytes, int]:
    """Return a request's body and the length of its JSON part.

    Args:
        files: The arguments of the command line.
        model: The model's metadata.

    Raises:
        click.ClickException: A file cannot be sent.
    """
    names = [str(entry["name"]) for entry in model["inputs"]] or ["data"]
    payloads = []
    for name, paths in _assign(files, names):
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            raise click.ClickException(f"no such file: {', '.join(missing)}")
        if paths[0].suffix == ".npy":
            payloads += [_payload_of_array(name, path) for path in paths]
        else:
            payloads.append(_payload_of_images(name, paths))
    document = {
        "inputs": [payload.header for payload in payloads],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    return b"".join([header, *(block for payload in payloads for block in payload.blocks)]), len(
        header
    )


def _value(output: dict[str, Any], block: bytes | None) -> Any:
    shape = [int(entry) for entry in output["shape"]]
    if block is None:
        return np.array(output["data"], dtype=object if output["datatype"] == "BYTES" else None)
    if output["datatype"] == "BYTES":
        found = bytes_tensor.decode(block, math.prod(shape))
        return [bytes(element).decode("utf-8", "replace") for element in found]
    dtype = datatype.dtype_string(output["datatype"])
    return np.frombuffer(block, dtype).reshape(shape)


def show_response(content: bytes, length: int | None) -> None:
    """Print the outputs of an answer.

    Args:
        content: The answer's body.
        length: The bytes of it that are JSON; None for all of it.
    """
    document = json.loads(content if length is None else content[:length])
    offset = length or 0
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        block = None if size is None else content[offset : offset + size]
        offset += size or 0
        shape = ",".join(str(entry) for entry in output["shape"])
        click.echo(f"{output['name']}  {output['datatype']}[{shape}]")
        value = _value(output, block)
        if isinstance(value, list):
            for element in value:
                click.echo(f"  {element}")
        else:
            text = np.array2string(value, precision=5, threshold=64, prefix="  ")
            click.echo(f"  {text}")
