"""`ksrv promote`: serves the version that `shadow` names, if it agrees with the version that serves."""

from pathlib import Path

import click

from ksrv.client import ClientError
from ksrv.client.command.connection import Credentials, credential_options, url_option


@click.command()
@click.argument("model")
@click.option(
    "--agreement",
    required=True,
    type=click.FloatRange(0, 1),
    help="Least share of the compared requests in which the versions agree.",
)
@click.option(
    "--requests",
    required=True,
    type=click.IntRange(1),
    help="Least number of compared requests.",
)
@url_option
@credential_options
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait for the load.")
def promote(
    model: str,
    agreement: float,
    requests: int,
    url: str,
    token_file: Path | None,
    ca: str | None,
    timeout: float,
) -> None:
    """Serve the version that MODEL's shadow: names, if it agrees with the version that serves.

    \b
      ksrv promote cats --agreement 0.999 --requests 10000

    The command prints how the answers differed. The exit status is 1 if the version was not promoted.
    """  # noqa: D301 - click reads the character
    client = Credentials(token_file, ca).client(url, timeout, retries=0)
    try:
        found = client.promote(model, agreement, requests)
    except (ClientError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    version, requests = found["version"], found["requests"]
    versions = f"version {version} agrees with version {found['before']}"
    click.echo(f"{model}: {versions} in {found['agreed']} of {requests} requests")
    for output, (compared, agreed) in found["outputs"].items():
        click.echo(f"  {output}: {agreed} of {compared}")
    for example in found["examples"]:
        click.echo(f"  {example}")
    if found["reason"]:
        raise click.ClickException(f"not promoted: {found['reason']}")
    click.echo(
        f"version {version} serves. Until the next start: to keep it, remove shadow: from model.yaml and have "
        f"version_policy: serve version {version}"
    )
