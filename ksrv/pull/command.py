"""`ksrv pull`: copies a model from a store into a folder, and compares a folder with what was pulled."""

import signal
from pathlib import Path

import click

from ksrv.cli.progress import Progress
from ksrv.pull.folder import differences, pull_into
from ksrv.pull.source import PullError, open_source


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
      ksrv pull hf://owner/name@revision models/name/1
      ksrv pull oci:cats.tar:v1 models/cats/1

    URI begins with s3://, gs://, az://, https://, hf:// or oci:. If a pull was ended, start it again: it
    continues. The lock file beside FOLDER, .NAME.pull.lock, has the revision and the digest of each file.

    The exit status is 1 if the model could not be pulled; with --verify, if a file differs.
    """  # noqa: D301 - click reads the character
    try:
        if not verify:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # no wait for files that still arrive
            with Progress() as progress:
                form = "{:,} of {:,} bytes".format
                done = pull_into(folder, open_source(uri), lambda *now: progress.show(form(*now)))
            click.echo(done)
        elif lines := differences(folder, uri):
            raise PullError("\n".join([f"{folder} differs from its lock file", *lines]))
        else:
            click.echo(f"{folder} has the files that were pulled")
    except (PullError, OSError) as error:
        raise click.ClickException(str(error)) from error
