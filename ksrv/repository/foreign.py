"""Models of other servers that are served as they are, and the report on each of them."""

from pathlib import Path

from ksrv.repository.entry import ModelEntry
from ksrv.repository.format import Formats
from ksrv.repository.layout import Repository, RepositoryError


def foreign_models(path: Path, formats: Formats) -> list[ModelEntry]:
    """Return the models at a path with another server's settings.

    Args:
        path: A model or a repository.
        formats: The readers of other servers' models.

    Returns:
        Their entries; an empty list for an archive, and for ksrv's models.

    Raises:
        RepositoryError: It is a config.json that cannot be read.
    """
    is_list = path.is_file() and formats.list_reader(path) is not None
    if (path.is_file() and not is_list) or formats.unpacked(path) is not None:
        return []
    try:
        entries = Repository([path], formats.without_archives()).look().values()
    except RepositoryError:
        if is_list:
            raise
        return []
    return [one for one in entries if one.report is not None or formats.folder_reader(one.path)]


def report_lines(entry: ModelEntry) -> list[str]:
    """Return the report on a model as text: its name and versions, then a line for each key."""
    served = ", ".join(entry.versions)
    lines = [f"{entry.name} {served}".rstrip()]
    if entry.report is not None:
        lines += [f"  {line}" for line in entry.report.lines()]
    errors = [entry.error, *(source.error for source in entry.versions.values())]
    return [*lines, *(f"  ERROR: {error}" for error in errors if error)]
