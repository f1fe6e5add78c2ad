"""`ksrv client`: prints code that calls a model, generated from the model's metadata."""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ksrv.client import ClientError
from ksrv.client.command.connection import (
    TOKEN_VARIABLE,
    Credentials,
    credential_options,
    url_option,
)
from ksrv.model.datatypes import BINARY_ONLY, DTYPES

LANGUAGES = ("curl", "python", "javascript")

FREE_SIZE = 8
"""The size in examples of a dimension of any size, except for the first."""

WRITTEN_VALUES = 64
"""The most values of an input that the code writes out. Larger inputs are sent as zero bytes."""


@click.command()
@click.argument("model")
@url_option
@click.option("--version", default="", help="The model's version.")
@click.option(
    "--language",
    type=click.Choice(["all", *LANGUAGES]),
    default="all",
    show_default=True,
    help="The language of the code.",
)
@click.option(
    "--image", default="image.jpg", show_default=True, help="Image file for the code to send."
)
@credential_options
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait.")
def client(
    model: str,
    url: str,
    version: str,
    language: str,
    image: str,
    token_file: Path | None,
    ca: str | None,
    timeout: float,
) -> None:
    """Print code that calls MODEL: curl, Python, JavaScript.

    The command reads the model's metadata from the server, and prints code that runs as it is. The code
    contains no token: it reads the token from the same file or variable as this command.
    """
    credentials = Credentials(token_file, ca)
    if url.startswith("grpc"):
        raise click.UsageError("the code calls REST; expected --url http://HOST:PORT")
    try:
        with credentials.client(url, timeout) as server:
            metadata = server.metadata(model, version)
            url = server.url.rstrip("/")
    except ClientError as error:
        raise click.ClickException(str(error)) from error
    inputs = inputs_of(metadata)
    if not inputs:
        raise click.ClickException(
            f"the model {model} declares no inputs, so no example can be made; write `inputs:` in "
            f"its model.yaml"
        )
    call = Call(url, model, version, inputs, credentials, image)
    for line in _shown(call, language):
        click.echo(line)


@dataclass(frozen=True)
class Input:
    """One input of the example request.

    Attributes:
        kind: "image", "text", "values" (written out) or "zeros".
        shape: The shape in the example.
    """

    name: str
    datatype: str
    kind: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def is_row(self) -> bool:
        """Whether the values are written out as one row, as plain JSON has it."""
        return self.kind in ("values", "text") and self.shape[:1] == (1,)

    @property
    def values(self) -> list[Any]:
        """The values, for code that writes them out."""
        if self.kind == "text":
            return ["text"] * self.count
        return [False if self.datatype == "BOOL" else 0] * self.count


@dataclass(frozen=True)
class Call:
    """The call that the examples make.

    Attributes:
        url: The server's URL for REST.
        image: The file that the code sends to image inputs.
        parameters: The request's parameters.
    """

    url: str
    model: str
    version: str
    inputs: tuple[Input, ...]
    credentials: Credentials
    image: str = "image.jpg"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the model's infer route."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}/infer"

    @property
    def has_token(self) -> bool:
        """Whether the code sends a token."""
        return self.credentials.token is not None

    @property
    def needs_image(self) -> bool:
        """Whether an input takes images."""
        return any(entry.kind == "image" for entry in self.inputs)

    @property
    def is_table(self) -> bool:
        """Whether the inputs are the columns of a table. The example has one row."""
        kinds = {entry.kind if entry.shape == (1,) else "" for entry in self.inputs}
        return len(self.inputs) > 1 and "values" in kinds and kinds <= {"values", "text"}

    def header(self, image_size: int | str) -> dict[str, Any]:
        """Return the JSON part of the request.

        Args:
            image_size: The placeholder for the bytes of an image.
        """
        inputs = {"inputs": [self._entry(entry, image_size) for entry in self.inputs]}
        return {**inputs, "parameters": self.parameters} if self.parameters else inputs

    def _entry(self, item: Input, image_size: int | str) -> dict[str, Any]:
        datatype = "BYTES" if item.kind == "image" else item.datatype
        made: dict[str, Any] = {"name": item.name, "datatype": datatype, "shape": list(item.shape)}
        if item.kind == "image":
            made["parameters"] = {"binary_data_size": image_size}
        elif item.kind == "zeros":
            made["parameters"] = {"binary_data_size": item.count * DTYPES[item.datatype].itemsize}
        else:
            made["data"] = item.values
        return made


def inputs_of(metadata: dict[str, Any]) -> tuple[Input, ...]:
    """Return example inputs for a model's metadata.

    Raises:
        click.ClickException: An input has a datatype that the protocol does not have.
    """
    images = {
        key.removesuffix(".image.accepts")
        for key in metadata.get("properties") or {}
        if key.endswith(".image.accepts")
    }
    return tuple(
        example_input(entry["name"], entry["datatype"], entry["shape"], entry["name"] in images)
        for entry in metadata.get("inputs", ())
    )


def example_input(name: str, datatype: str, shape: Sequence[int], is_image: bool) -> Input:
    """Return an example input.

    Args:
        shape: The declared shape, with -1 for a dimension of any size.

    Raises:
        click.ClickException: The protocol does not have the datatype.
    """
    if datatype not in DTYPES and datatype != "BYTES":
        raise click.ClickException(
            f"the input {name!r} has the datatype {datatype!r}, which is unknown here"
        )
    if is_image:
        return Input(name, datatype, "image", (1,))
    free = 1 if datatype == "BYTES" else FREE_SIZE
    sizes = tuple(
        size if size >= 0 else 1 if place == 0 else free for place, size in enumerate(shape)
    )
    if datatype == "BYTES":
        return Input(name, datatype, "text", sizes)
    written = math.prod(sizes) <= WRITTEN_VALUES and datatype not in BINARY_ONLY
    return Input(name, datatype, "values" if written else "zeros", sizes)


def curl_options(credentials: Credentials) -> list[str]:
    """Return curl's options for the token and the certificate authority."""
    options = []
    if credentials.ca is not None:
        options.append(f"--cacert {shlex.quote(credentials.ca)}")
    if credentials.token_file is not None:
        file = shlex.quote(str(credentials.token_file))
        options.append(f"-H \"Authorization: Bearer $(grep -m1 '^[^#]' {file})\"")
    elif credentials.token is not None:
        options.append(f'-H "Authorization: Bearer ${TOKEN_VARIABLE}"')
    return options


def curl_code(call: Call) -> str:
    """Return a shell command.

    Image inputs alone are sent as a form, a row of short values as plain JSON, and other short values as JSON.
    Otherwise the body is the JSON header `$H` and then binary tensors.
    """
    options = curl_options(call.credentials)
    url = shlex.quote(call.url + call.path)
    if not call.parameters and all(entry.kind == "image" for entry in call.inputs):
        files = [f"-F {shlex.quote(f'{entry.name}=@{call.image}')}" for entry in call.inputs]
        return " ".join(["curl -s", url, *options, *files])
    if not call.parameters and all(entry.is_row for entry in call.inputs):
        row = {entry.name: _nested(entry.values, entry.shape)[0] for entry in call.inputs}
        url = shlex.quote(call.url + call.path.removesuffix("infer") + "generate")
        return " ".join(["curl -s", url, *options, "-d", shlex.quote(json.dumps(row))])
    if not call.needs_image and all(entry.kind != "zeros" for entry in call.inputs):
        body = json.dumps(call.header(0), separators=(",", ":"))
        return " ".join(["curl -s", url, *options, "-d", shlex.quote(body)])
    image = shlex.quote(call.image)
    lines = []
    if call.needs_image:
        lines.append(f"SIZE=$(($(wc -c < {image})))")
    header = json.dumps(call.header("@SIZE@"), separators=(",", ":"))
    lines.append("H=" + shlex.quote(header).replace('"@SIZE@"', "'$SIZE'"))
    parts = ['printf %s "$H"']
    for entry in call.inputs:
        if entry.kind == "image":
            parts.append(f"cat {image}")
        elif entry.kind == "zeros":
            parts.append(f"head -c {entry.count * DTYPES[entry.datatype].itemsize} /dev/zero")
    length = '-H "Inference-Header-Content-Length: ${#H}"'
    lines.append(f"({'; '.join(parts)}) |")
    lines.append("  " + " ".join(["curl -s", url, *options, length, "--data-binary @-"]))
    return "\n".join(lines)


def python_code(call: Call) -> str:
    """Return a Python program that uses ksrv.client."""
    arguments = [repr(call.url)]
    reads_file = call.needs_image
    imports = []
    if call.credentials.token_file is not None:
        opened = f"open({str(call.credentials.token_file)!r})"
        arguments.append(f"token=next(line.strip() for line in {opened} if line[0] not in '#\\n')")
    elif call.has_token:
        imports.append("import os")
        arguments.append(f"token=os.environ[{TOKEN_VARIABLE!r}]")
    if call.credentials.ca is not None:
        arguments.append(f"ca={call.credentials.ca!r}")
    if reads_file:
        imports.append("from pathlib import Path")
    if any(entry.kind == "zeros" for entry in call.inputs):
        imports += ["", "import numpy as np"] if imports else ["import numpy as np"]
    entries = [f"{item.name!r}: {_python_value(item, call.image)}" for item in call.inputs]
    values = f"{{{', '.join(entries)}}}"
    table = []
    if call.is_table:  # the columns, each with a value for each row
        table, values = ["table = {", *(f"    {entry}," for entry in entries), "}", ""], "table"
    version = f", version={call.version!r}" if call.version else ""
    lines = [
        *imports,
        *([""] if imports else []),
        "from ksrv.client import Client",
        "",
        *table,
        f"with Client({', '.join(arguments)}) as client:",
        f"    answer = client.infer({call.model!r}, {values}{version})",
        "for name, value in answer.items():",
        "    print(name, value.shape, value)",
    ]
    return "\n".join(lines)


def _python_value(item: Input, image: str) -> str:
    if item.kind == "image":
        return f"[Path({image!r})]"
    if item.kind == "zeros":
        kind = "float32" if item.datatype == "BF16" else DTYPES[item.datatype].name
        return f"np.zeros({item.shape}, np.{kind})"
    return repr(_nested(item.values, item.shape))


def _nested(values: list[Any], shape: tuple[int, ...]) -> Any:
    if len(shape) <= 1:
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return [
        _nested(values[start * step : (start + 1) * step], shape[1:]) for start in range(shape[0])
    ]


def javascript_code(call: Call) -> str:
    """Return a JavaScript module for Node.js 18 and browsers."""
    lines: list[str] = []
    if call.credentials.ca is not None:
        lines.append(f"// node: set NODE_EXTRA_CA_CERTS={call.credentials.ca}")
    headers = []
    if call.has_token:
        token = f"process.env.{TOKEN_VARIABLE}"
        if call.credentials.token_file is not None:
            lines.append("import { readFileSync } from 'node:fs';")
            file = json.dumps(str(call.credentials.token_file))
            token = f"readFileSync({file}, 'utf8').match(/^[^#\\s].*$/m)[0]"
        headers.append(f"'Authorization': `Bearer ${{{token}}}`")
    if call.needs_image:
        lines.append(
            "import { readFile } from 'node:fs/promises';  // in a browser: file.arrayBuffer()"
        )
        lines += ["", f"const image = new Uint8Array(await readFile({json.dumps(call.image)}));"]
    header = json.dumps(call.header("@SIZE@"), separators=(", ", ": "))
    header = header.replace('"@SIZE@"', "image.length")
    binary = call.needs_image or any(entry.kind == "zeros" for entry in call.inputs)
    lines.append(f"const request = {header};")
    body = "JSON.stringify(request)"
    if binary:
        parts = []
        for entry in call.inputs:
            if entry.kind == "image":
                parts.append("image")
            elif entry.kind == "zeros":
                parts.append(f"new Uint8Array({entry.count * DTYPES[entry.datatype].itemsize})")
        lines.append("const header = new TextEncoder().encode(JSON.stringify(request));")
        headers.append("'Inference-Header-Content-Length': String(header.length)")
        body = f"new Blob([header, {', '.join(parts)}])"
    else:
        headers.append("'Content-Type': 'application/json'")
    lines += [
        f"const response = await fetch({json.dumps(call.url + call.path)}, {{",
        "  method: 'POST',",
        f"  headers: {{ {', '.join(headers)} }},",
        f"  body: {body},",
        "});",
        "const answer = await response.json();",
        "if (!response.ok) throw new Error(`${response.status}: ${answer.error}`);",
        "for (const output of answer.outputs) console.log(output.name, output.shape, output.data);",
    ]
    return "\n".join(lines)


_WRITERS: dict[str, Callable[[Call], str]] = {
    "curl": curl_code,
    "python": python_code,
    "javascript": javascript_code,
}


def _shown(call: Call, language: str) -> Iterator[str]:
    """Yield the code in one language, or in all languages with a title for each."""
    if language != "all":
        yield _WRITERS[language](call)
        return
    for position, name in enumerate(LANGUAGES):
        yield f"{'' if not position else chr(10)}--- {name} ---"
        yield _WRITERS[name](call)
