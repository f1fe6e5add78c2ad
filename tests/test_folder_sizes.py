"""No folder holds more subjects than a newcomer takes in at a glance, as CONTRIBUTING.md says."""

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MOST_SUBJECTS = 15
SOURCES = {
    *(".py", ".pyi", ".pyx", ".pxd"),
    *(".cpp", ".hpp", ".js", ".css", ".html", ".sh"),
}
UNCOUNTED = {"__init__", "conftest"}
"""Files that Python and pytest ask for, by any subject."""


def subjects_by_folder() -> dict[Path, set[str]]:
    """Return the subjects of each folder: files of one name, such as a .cpp with its .hpp, are one."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    subjects = defaultdict(set)
    for path in map(Path, listing.splitlines()):
        if path.suffix in SOURCES and path.stem not in UNCOUNTED:
            subjects[path.parent].add(path.stem)
    return subjects


def test_folders_have_at_most_fifteen_subjects():
    if not (ROOT / ".git").exists():
        pytest.skip("the listing is git's, and this is not a checkout")
    crowded = {
        str(folder): sorted(subjects)
        for folder, subjects in subjects_by_folder().items()
        if len(subjects) > MOST_SUBJECTS
    }
    assert not crowded
