"""The files below a folder, to compare with expected files."""

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file by its path below the folder, with `/` between the parts."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
