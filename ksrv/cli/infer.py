"""`ksrv infer`: one request from the command line, and its answer in a readable form."""

import http.client
import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click
import numpy as np

from ksrv._native.tensor import bytes_tensor as elements
from ksrv._native.tensor import datatype

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
HEADER_LENGTH = "Inference-Header-Content-Length"


class Client:
    """The few calls that the command needs, over one connection.

    Args:
        url: The server's URL.
        token: A bearer token, or None.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"expected http://HOST:PORT, got {url}", param_hint="--url")
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[bytes, int | None]:
        """Return an answer's body and the length of its JSON part, if the rest is binary.

        Raises:
            click.ClickException: There is no answer, or it is an error.
        """
        try:
            self._connection.request(method, path, body, self._headers | (headers or {}))
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise click.ClickException(f"no answer from {self._url}: {error}") from error
        if response.status != 200:
            raise click.ClickException(f"{response.status}: {_error_text(content)}")
        length = response.getheader(HEADER_LENGTH)
        return content, None if length is None else int(length)


def _error_text(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")


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
    for name in datatype.NAMES:
        if name not in ("BYTES", "BF16") and np.dtype(datatype.dtype_string(name)) == dtype:
            return name
    raise click.ClickException(f"arrays of {dtype} have no place in the protocol")


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

    A model may take inputs that it does not declare, so every name is taken; one that it does not
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


def _build(files: tuple[str, ...], model: dict[str, Any]) -> tuple[bytes, int]:
    """Return the request's body and the length of its JSON part."""
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
        found = elements.decode(block, math.prod(shape))
        return [bytes(element).decode("utf-8", "replace") for element in found]
    dtype = datatype.dtype_string(output["datatype"])
    return np.frombuffer(block, dtype).reshape(shape)


def _show(content: bytes, length: int | None) -> None:
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


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The server.")
@click.option("--version", "version", default="", help="The model's version.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is sent as bearer token.",
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait.")
def infer(
    model: str,
    files: tuple[str, ...],
    url: str,
    version: str,
    token_file: Path | None,
    timeout: float,
) -> None:
    """Send FILES to MODEL and print its answer; without files, print what MODEL takes.

    JPEG and PNG files are sent as one batch, .npy files as raw tensors, one for each input in
    order; NAME=FILE names the input. A single .json file is sent as the request that it holds.
    """
    token = None if token_file is None else token_file.read_text(encoding="utf-8").split()[0]
    client = Client(url, token, timeout)
    path = f"/v2/models/{quote(model, safe='')}"
    if version:
        path += f"/versions/{quote(version, safe='')}"
    if len(files) == 1 and files[0].endswith(".json"):
        try:
            body = Path(files[0]).read_bytes()
        except OSError as error:
            raise click.ClickException(f"{files[0]} cannot be read: {error}") from error
        _show(*client.call("POST", f"{path}/infer", body))
        return
    metadata = json.loads(client.call("GET", path)[0])
    if not files:
        click.echo(json.dumps(metadata, indent=2))
        return
    body, length = _build(files, metadata)
    _show(*client.call("POST", f"{path}/infer", body, {HEADER_LENGTH: str(length)}))
