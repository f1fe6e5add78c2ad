"""`ksrv infer`: sends one request from the command line, and prints the answer."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ksrv.client import AccessDenied, ClientError, InferResult
from ksrv.client.command.answers import as_document, save_outputs, show
from ksrv.client.command.connection import Credentials, credential_options, url_option
from ksrv.client.command.values import images_of, values_of
from ksrv.client.http1.connections import ConnectionPool
from ksrv.client.http1.messages import make_target
from ksrv.client.operations import Operation
from ksrv.client.rest import HttpRequest, answer_of
from ksrv.client.waiting import BLOCKING, wait


@click.command()
@click.argument("model")
@click.argument("files", nargs=-1)
@url_option
@click.option("--version", default="", help="The model's version.")
@click.option(
    "--text", "texts", multiple=True, metavar="[NAME=]TEXT", help="A text to send. May be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--stream", is_flag=True, help="Print each part of the answer when it arrives.")
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write each output to this folder: as .npy, and images, masks and boxes as pictures too.",
)
@credential_options
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait.")
def infer(
    model: str,
    files: tuple[str, ...],
    url: str,
    version: str,
    texts: tuple[str, ...],
    as_json: bool,
    stream: bool,
    save: Path | None,
    token_file: Path | None,
    ca: str | None,
    timeout: float,
) -> None:
    """Send FILES to MODEL and print the answer; without files, print the inputs of MODEL.

    \b
      ksrv infer cats cat.jpg
      ksrv infer two image=photo.jpg weight=2
      ksrv infer mood --text "what a day"

    JPEG, PNG and other files are one batch of bytes, and .npy files are arrays, one for each input. NAME=FILE
    names the input, and NAME=JSON gives numbers: sizes=[[1,2],[3,4]]. A single .json file is a whole
    request. - reads the bytes from stdin.
    """  # noqa: D301 - click reads the character
    credentials = Credentials(token_file, ca)
    try:
        with credentials.client(url, timeout) as client:
            if len(files) == 1 and files[0].endswith(".json") and not texts:
                if stream:
                    raise click.UsageError(
                        "a request in a .json file is answered at once, without --stream"
                    )
                answer = _send_document(
                    Path(files[0]), model, version, client.url, credentials, timeout
                )
                images: list[bytes] = []
            else:
                metadata = client.metadata(model, version)
                if not files and not texts:
                    click.echo(json.dumps(metadata, indent=2))
                    return
                values = values_of(files, texts, metadata)
                images = images_of(values)
                if stream:
                    _print_parts(client.stream(model, values, version=version), as_json=as_json)
                    return
                answer = client.infer(model, values, version=version)
    except AccessDenied as error:
        raise click.ClickException(
            f"{error}; --token-file FILE or the variable KSRV_TOKEN gives the token"
        ) from error
    except (ClientError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(as_document(answer), indent=2)) if as_json else show(answer)
    if save is not None:
        for path in save_outputs(answer, images, save):
            click.echo(f"saved {path}", err=True)


def _print_parts(parts: Iterable[InferResult], *, as_json: bool) -> None:
    """Print each part when it arrives: texts one after the other, everything else as `show` does."""
    texts = False
    for part in parts:
        if as_json:
            click.echo(json.dumps(as_document(part)))
        elif (
            len(part) == 1
            and not part.content_types
            and all(value.dtype == object for value in part.values())
        ):
            texts = True
            click.echo(part.text, nl=False)
        else:
            show(part)
    if texts:
        click.echo()


def _send_document(
    file: Path, model: str, version: str, url: str, credentials: Credentials, timeout: float
) -> InferResult:
    """Send the request in a .json file as it is."""
    if url.startswith("grpc"):
        raise click.UsageError("a request in JSON is REST's; expected --url http://HOST:PORT")
    try:
        body = file.read_bytes()
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error
    path = f"/v2/models/{quote(model, safe='')}"
    path += f"/versions/{quote(version, safe='')}" if version else ""
    request = HttpRequest("POST", f"{path}/infer", (("Content-Type", "application/json"),), (body,))
    target = make_target(url, credentials.token, credentials.ca, None)
    pool = ConnectionPool(target, BLOCKING.open_channel, repeats=False)
    try:
        response = wait(pool.send(request, time.monotonic() + timeout))
    finally:
        wait(pool.close())
    answer: Any = answer_of(Operation("ModelInfer", model, version), response)
    found: InferResult = answer
    return found
