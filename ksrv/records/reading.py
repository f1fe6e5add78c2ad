"""Reads the records in files that `files.py` wrote."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec

from ksrv.records.lines import Record

SUFFIX = ".jsonl"
LONGEST_LINE = 64 << 20
"""The most bytes of a line; a worker writes shorter lines."""


class RecordError(ValueError):
    """A record cannot be read; the text names file, line and cause."""


def record_files(path: Path) -> list[Path]:
    """Return the files of records at a path: itself, or all below the folder.

    Raises:
        RecordError: The path has no file of records.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob(f"*{SUFFIX}") if file.is_file())
        if not found:
            raise RecordError(f"the folder {path} holds no file of records (*{SUFFIX})")
        return found
    if not path.is_file():
        raise RecordError(f"{path} is neither a file of records (*{SUFFIX}) nor a folder with some")
    return [path]


def read_records(path: Path, most: int | None = None) -> Iterator[Record]:
    """Yield the records of a file, or of all files below a folder, each file in its order.

    An incomplete last line is left out, because a worker may be writing it.

    Args:
        most: The most records to yield; None for all.

    Raises:
        RecordError: The path has no file of records, or a line is not a record.
    """
    yield from islice(chain.from_iterable(map(_of_file, record_files(path))), most)


def _of_file(file: Path) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(Record)
    number = 0
    try:
        with file.open("rb") as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise RecordError(f"{file}:{number}: a line has more than {LONGEST_LINE} bytes")
                if not line.endswith(b"\n"):
                    return
                if line.strip():
                    yield decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise RecordError(f"{file}:{number}: the line is not a record: {error}") from None
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror or error}") from error
