"""`ksrv import`: what a TorchServe archive holds, and a model folder made of it."""

from pathlib import Path

import click


@click.command("import")
@click.argument("archive", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    help="Model repository that the archive becomes a folder of.",
)
@click.option(
    "--install-requirements",
    is_flag=True,
    help="Install the archive's requirements into the new folder (runs pip).",
)
def import_archive(archive: Path, repository: Path | None, install_requirements: bool) -> None:
    """Report what ksrv makes of ARCHIVE, a .mar, .tar.gz or unpacked folder.

    With --to it becomes a folder with a model.yaml that serves the same.
    """
    from ksrv.repository import importing
    from ksrv.repository.torchserve.archive import ArchiveError

    if install_requirements and repository is None:
        raise click.UsageError("--install-requirements needs --to: it installs into the new folder")
    try:
        found = importing.examine(archive)
        click.echo(f"{found.name} {found.version}")
        for line in found.report.lines():
            click.echo(f"  {line}")
        if repository is not None:
            folder = importing.import_archive(
                found, repository, with_requirements=install_requirements
            )
            click.echo(f"{folder} serves it: ksrv serve {repository}")
    except (ArchiveError, OSError) as error:
        raise click.ClickException(str(error)) from error
