"""`ksrv infer`: one request from the command line, and its answer in a readable form."""

import http.client
import json
from pathlib import Path
from urllib.parse import quote, urlsplit

import click

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
    from ksrv.cli.infer_bodies import build_request, show_response  # loads numpy

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
        show_response(*client.call("POST", f"{path}/infer", body))
        return
    metadata = json.loads(client.call("GET", path)[0])
    if not files:
        click.echo(json.dumps(metadata, indent=2))
        return
    body, length = build_request(files, metadata)
    show_response(*client.call("POST", f"{path}/infer", body, {HEADER_LENGTH: str(length)}))
