"""The options of commands that call a server: its URL, and the credentials."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ksrv.client import Client

DEFAULT_URL = "http://127.0.0.1:8080"

TOKEN_VARIABLE = "KSRV_TOKEN"

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Credentials:
    """The token that a client sends, and the authorities that it trusts.

    Attributes:
        token_file: The file whose first line that is not a comment is the token, or None.
        ca: The file of the trusted certificate authorities, or None for the system's.
    """

    token_file: Path | None
    ca: str | None

    @property
    def token(self) -> str | None:
        """The bearer token: from the file, else from the variable KSRV_TOKEN, else None.

        Raises:
            click.ClickException: The file has no token.
        """
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        lines = self.token_file.read_text(encoding="utf-8-sig").splitlines()
        token = next((line.strip() for line in lines if line.strip() and line[0] != "#"), None)
        if token is None:
            raise click.ClickException(f"{self.token_file} holds no token; expected one in a line")
        return token

    def client(self, url: str, timeout: float, retries: int = 3) -> Client:
        """Return a client.

        Args:
            timeout: Seconds that a call may take.
            retries: How often a call is made again while the server is busy.

        Raises:
            click.ClickException: The URL or a file cannot be used.
        """
        try:
            return Client(url, token=self.token, ca=self.ca, timeout=timeout, retries=retries)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from error
        except (OSError, ImportError) as error:
            raise click.ClickException(f"no client can be made for {url}: {error}") from error


def credential_options(command: Command) -> Command:
    """Add --token-file and --ca to a command.

    Args:
        command: The command's function, which takes `token_file` and `ca`.
    """
    token = click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"File with the bearer token.  [env: {TOKEN_VARIABLE} (the token)]",
    )
    ca = click.option(
        "--ca",
        envvar="KSRV_CA",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Certificate authorities (PEM) to trust, instead of the system's.",
    )
    return token(ca(command))


url_option = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="KSRV_URL",
    show_envvar=True,
    help="The server: http://, https://, grpc:// or grpcs://HOST:PORT.",
)
"""Adds --url to a command, whose function takes `url`."""
