"""Rewrites source archives so that the same sources make the same bytes.

    python tools/release/reproducible_sdist.py dist/*.tar.gz

setuptools writes the times of the checkout, the user's name and the hour of the build. Here every file
has the time of `SOURCE_DATE_EPOCH` (or of 1980), the modes 644 or 755, no owner, and its place by name.
"""

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path

EARLIEST = 315532800
"""The earliest time that a zip archive, and so a wheel, can store."""


def rewrite(path: Path, epoch: int) -> None:
    """Write an archive anew.

    Args:
        path: A .tar.gz file.
        epoch: The time of everything in it, in seconds since 1970.
    """
    plain = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        packed.write(plain.getvalue())


if __name__ == "__main__":
    seconds = max(EARLIEST, int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST)))
    for name in sys.argv[1:]:
        rewrite(Path(name), seconds)
