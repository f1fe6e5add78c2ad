"""`ksrv import`: what becomes of the settings of another server's models, and folders made of archives."""

from pathlib import Path

import click


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the archive as a folder into this model repository.",
)
def import_archive(path: Path, repository: Path | None) -> None:
    """Report how ksrv reads the settings of another server's models at PATH.

    PATH is a TorchServe archive (a .mar, .tar.gz or unpacked folder), a Triton model or repository, or the
    config.json of an OpenVINO Model Server. --to writes an archive as a folder with a model.yaml; the other
    formats need no such step.

    The exit status is 1 if a model cannot be read.
    """
    from ksrv.repository.foreign import foreign_models, report_lines
    from ksrv.repository.layout import RepositoryError
    from ksrv.server.dialects import formats, installed

    try:
        others = foreign_models(path, formats())
    except RepositoryError as error:
        raise click.ClickException(str(error)) from error
    if others:
        if repository is not None:
            raise click.UsageError(
                f"--to is for archives; ksrv serve {path} serves these as they are"
            )
        for entry in others:
            click.echo("\n".join(report_lines(entry)))
        if any(entry.report is None for entry in others):
            raise click.exceptions.Exit(1)
        return
    try:
        found = next(filter(None, (one.examine(path) for one in installed())))
        click.echo(f"{found.name} {found.version}")
        for line in found.lines():
            click.echo(f"  {line}")
        if repository is not None:
            folder = found.write(repository)
            click.echo(f"{folder} serves it: ksrv serve {repository}")
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
