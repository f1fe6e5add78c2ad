"""Finds the pickles among the files of a model. Loading a pickle runs the code in it."""

import zipfile
from pathlib import Path

SUFFIXES = (".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle")
PROTOCOLS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""The first bytes of pickles. Many flavours give their pickles another suffix, such as .statsmodels."""


def find_pickle(folder: Path) -> Path | None:
    """Return the first file of a folder that is a pickle or an archive with a pickle, as torch.save writes it."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return next((file for file in files if is_pickle(file)), None)


def is_pickle(file: Path) -> bool:
    """Tell whether a file is a pickle, by its suffix or its content."""
    if file.suffix in SUFFIXES:
        return True
    with file.open("rb") as opened:
        start = opened.read(4)
    if start.startswith(PROTOCOLS):
        return True
    if start != b"PK\x03\x04":
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False  # the load reports the damaged file
