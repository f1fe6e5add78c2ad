"""`ksrv import`: reports how ksrv reads another server's models, and converts archives to folders."""

from pathlib import Path

import click

from ksrv.dialects.registry import formats, installed
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import Repository, RepositoryError


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the archive as a folder into this model repository.",
)
def import_models(path: Path, repository: Path | None) -> None:
    """Report how ksrv reads the settings of another server's models at PATH.

    PATH is a TorchServe archive (a .mar, .tar.gz or unpacked folder), a Triton model or repository, or the
    config.json of an OpenVINO Model Server. --to writes an archive as a folder with a model.yaml; the other
    formats need no such step.

    The exit status is 1 if a model cannot be read.
    """
    if others := _served_as_they_are(path):
        if repository is not None:
            raise click.UsageError(
                f"--to is for archives; ksrv serve {path} serves these as they are"
            )
        for entry in others:
            click.echo("\n".join(_report_lines(entry)))
        if any(entry.report is None for entry in others):
            raise click.exceptions.Exit(1)
        return
    try:
        found = next(filter(None, (dialect.examine(path) for dialect in installed())), None)
        if found is None:
            raise click.ClickException(
                f"{path} is not a model of another server: expected an archive, a repository or a config.json"
            )
        click.echo(f"{found.name} {found.version}")
        for line in found.lines():
            click.echo(f"  {line}")
        if repository is not None:
            folder = found.write(repository)
            click.echo(f"{folder} serves it: ksrv serve {repository}")
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _served_as_they_are(path: Path) -> list[ModelEntry]:
    """Return the models of other servers at a path that need no conversion. Archives and ksrv's models are left out.

    Raises:
        ClickException: The path is a config.json that cannot be read.
    """
    known = formats()
    is_list = path.is_file() and known.list_reader(path) is not None
    if (path.is_file() and not is_list) or known.unpacked(path) is not None:
        return []
    try:
        entries = Repository([path], known.without_archives()).look().values()
    except RepositoryError as error:
        if is_list:
            raise click.ClickException(str(error)) from error
        return []
    return [item for item in entries if item.report is not None or known.folder_reader(item.path)]


def _report_lines(entry: ModelEntry) -> list[str]:
    """Return the report on a model as text: its name and versions, then a line for each key."""
    lines = [f"{entry.name} {', '.join(entry.versions)}".rstrip()]
    if entry.report is not None:
        lines += [f"  {line}" for line in entry.report.lines()]
    errors = [entry.error, *(source.error for source in entry.versions.values())]
    return [*lines, *(f"  ERROR: {error}" for error in errors if error)]
