"""The files that a pull copies, with sizes and digests, and the rules for their names."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol

from ksrv.errors import quote

MOST_FILES = 100_000
"""The most files of a model."""

READERS = dict.fromkeys(("s3", "gs", "az", "https"), "ksrv.pull.objects:ObjectSource")
READERS |= {"hf": "ksrv.pull.hub:HubSource", "oci": "ksrv.pull.oci:OciSource"}
"""The class that reads each kind of address. Imported when it is used, because it needs other packages."""

SCHEMES = "s3://, gs://, az://, https://, hf://OWNER/NAME[@REVISION] or oci:PATH[:TAG]"

Arrived = Callable[[str, int], None]
"""Is called with the name of a file, and its size so far."""

EXPECTED_NAME = "expected a relative path without '..', backslashes and control characters"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|^$|(^|/)\.{0,2}(/|$)")
"""Control characters, backslashes, halves of surrogate pairs; and parts of a path that are empty, `.` or `..`."""


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
    """A model in a store. The class is called with the address, and lists the files.

    Attributes:
        uri: The address without credentials.
        revision: Differs if a file does: a commit, the digest of a manifest or of a list of ETags.
        files: The files of the model.
    """

    uri: str
    revision: str
    files: list[RemoteFile]

    def fetch(self, tree: Path, arrived: Arrived) -> None:
        """Write the files below a folder, which may have files, whole or in part, of an earlier call.

        Raises:
            PullError: The source does not send a file.
            OSError: A file cannot be written.
        """


def open_source(uri: str) -> Source:
    """Return the source at an address, after listing its files.

    Raises:
        PullError: The address has another form, the files cannot be listed, or a package is missing.
    """
    scheme, colon, _ = uri.partition(":")
    if not colon or scheme not in READERS:
        raise PullError(f"{quote(redacted(uri))} is no address; expected {SCHEMES}")
    try:
        source: Source = resolve_name(READERS[scheme])(uri)
    except ModuleNotFoundError as error:
        raise PullError(f"{error}; for {scheme}: pip install huggingface_hub obstore") from error
    return source


def redacted(text: str) -> str:
    """Return a text without the queries and passwords of its addresses, which may be credentials."""
    return re.sub(r"(?<=//)[^/\s@]*@", "", re.sub(r"(\w+://[^\s?]*)\?[^\s#]*", r"\1", text))


@contextmanager
def explained(subject: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of a library into sentences: obstore's are long, and quote credentials.

    Args:
        subject: The address, and the file if there is one.
        kinds: The errors. Those of this machine's file system pass, because they name their path and cause.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text, _, details = str(error).partition("Debug source:")
        causes = re.findall(r'(?:error|message): "([^"]+)"|InvalidCertificate\(\s*(\w+)', details)
        text = re.sub(r"^Generic \w+ error: ", "", " ".join(redacted(text).split()))[:500]
        raise PullError("; ".join([f"{subject}: {text}", *map("".join, causes[-1:])])) from error


def paths_above(name: str) -> set[str]:
    """Return the folders of a file."""
    return {name[: match.start()] for match in re.finditer("/", name)}


def check_names(files: list[RemoteFile]) -> None:
    """Refuse names that lead out of a folder, or that name the same file on a system that ignores case.

    Raises:
        PullError: A name cannot be used; or the source has no files, or too many.
    """
    if not 0 < len(files) <= MOST_FILES:
        raise PullError(f"the source has {len(files)} files; expected 1 to {MOST_FILES}")
    taken: dict[str, bool] = {}  # whether a name, without case, is a file
    for name in (file.name for file in files):
        if _UNSAFE.search(name):
            raise PullError(f"the source has a file {quote(name)}; {EXPECTED_NAME}")
        above = paths_above(name.casefold())
        if name.casefold() in taken or any(taken.get(folder) for folder in above):
            raise PullError(f"the source has {quote(name)} twice, or with another case; rename one")
        taken |= {**dict.fromkeys(above, False), name.casefold(): True}
