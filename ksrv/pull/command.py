"""`ksrv pull`: copies a model from a store into a folder, and compares a folder with what was pulled."""

from pathlib import Path

import click

from ksrv.cli.progress import Progress
from ksrv.pull.address import open_source
from ksrv.pull.folder import pull as pull_into
from ksrv.pull.folder import verify as differences
from ksrv.pull.source import PullError


@click.command()
@click.argument("uri")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--verify", is_flag=True, help="Only compare FOLDER with its lock file; uses no network."
)
def pull(uri: str, folder: Path, verify: bool) -> None:
    """Copy the model at URI into FOLDER, which appears when all files are there.

    \b
      ksrv pull s3://bucket/models/cats/1 models/cats/1
      ksrv pull https://host/cats.onnx#sha256=HEX models/cats/1

    URI begins with s3://, gs://, az:// or https://. If a pull was ended, start it again: it
    continues. The lock file beside FOLDER, .NAME.pull.lock, has the revision and the digest of each file.

    The exit status is 1 if the model could not be pulled; with --verify, if a file differs.
    """  # noqa: D301 - click reads the character
    try:
        if verify:
            lines = differences(uri, folder)
            for line in lines:
                click.echo(line, err=True)
            if lines:
                raise PullError(f"{folder} differs from its lock file; remove it and pull again")
            click.echo(f"{folder} has the files that were pulled")
            return
        with Progress() as progress:
            done = pull_into(
                uri,
                folder,
                open_source,
                lambda arrived, total: progress.show(f"{arrived:,} of {total:,} bytes"),
            )
        click.echo(done)
    except (PullError, OSError) as error:
        raise click.ClickException(str(error)) from error
