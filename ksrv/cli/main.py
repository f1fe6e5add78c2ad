"""The command group; each command has a module of its own."""

import click

import ksrv
from ksrv.cli.import_archive import import_archive
from ksrv.cli.infer import infer
from ksrv.cli.schema import schema
from ksrv.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ksrv.__version__, prog_name="ksrv")
def main() -> None:
    """Serve models over the KServe v2 protocol."""


main.add_command(serve)
main.add_command(infer)
main.add_command(import_archive)
main.add_command(schema)
