"""The files that a pull copies, with sizes and digests, and the rules for their names."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from ksrv.errors import quote

MOST_FILES = 100_000
"""The most files of a model."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
"""Control characters, backslashes and halves of surrogate pairs, which no file system or terminal should get."""


class PullError(Exception):
    """A model cannot be pulled, or a folder differs from what was pulled."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source.

    Attributes:
        name: The path below the folder, with `/` between its parts.
        size: Bytes.
        digest: "sha256:HEX" of the content, "git:HEX" for git's SHA-1 of it as a blob, or "" if the source gives none.
        tag: The ETag of the object, or "".
    """

    name: str
    size: int
    digest: str = ""
    tag: str = ""


class Source(Protocol):
    """A model in a store.

    Attributes:
        uri: The address without credentials.
        revision: Differs if a file does: a commit, the digest of a manifest or of a list of ETags.
        files: The files of the model.
    """

    uri: str
    revision: str
    files: list[RemoteFile]

    def fetch(self, tree: Path, advance: Callable[[int], None]) -> None:
        """Write the files below a folder, which may have files, whole or in part, of an earlier call.

        Args:
            advance: Is given the number of bytes that have arrived since its last call.

        Raises:
            PullError: The source does not send a file.
            OSError: A file cannot be written.
        """


def without_secrets(text: str) -> str:
    """Return a text without the queries and passwords of its addresses, which may be credentials."""
    return re.sub(r"(?<=//)[^/\s@]*@", "", re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", text))


def file_name(uri: str) -> str:
    """Return the last part of the path of an address."""
    return urlsplit(uri).path.rpartition("/")[2]


def check_names(files: Sequence[RemoteFile]) -> None:
    """Refuse names that lead out of a folder, or that name the same file.

    Raises:
        PullError: A name cannot be used; or the source has no files, or too many.
    """
    if not 0 < len(files) <= MOST_FILES:
        raise PullError(f"the source has {len(files)} files; expected 1 to {MOST_FILES}")
    seen: dict[str, str] = {}
    for file in files:
        parts = file.name.split("/")
        if _UNSAFE.search(file.name) or not {"", ".", ".."}.isdisjoint(parts):
            raise PullError(
                f"the source names a file {quote(file.name)}; expected a relative path without '..', empty parts, "
                f"backslashes or control characters"
            )
        folded = file.name.casefold()
        if folded in seen:
            raise PullError(
                f"the source has {quote(seen[folded])} and {quote(file.name)}, which are the same file on some systems; "
                f"rename one of them there"
            )
        seen[folded] = file.name
    for name in seen.values():
        folders = name.casefold().split("/")[:-1]
        for end in range(1, len(folders) + 1):
            if file_above := seen.get("/".join(folders[:end])):
                raise PullError(
                    f"the source has a file {quote(file_above)} and files below it; rename it there"
                )
