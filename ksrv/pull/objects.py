"""Objects in S3, Google Cloud Storage, Azure Blob Storage and behind https, read by obstore."""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from ksrv.errors import quote
from ksrv.pull.source import MOST_FILES, Arrived, PullError, RemoteFile, explained, redacted

ATTEMPTS = 3
"""Attempts for a file. In each of them obstore itself continues a transfer that breaks, if there is an ETag."""
READ_TIMEOUT_S = 30
"""How long a server may send nothing."""
RETRIES = 5


class ObjectSource:
    """The objects below an address, or the object at it.

    obstore takes credentials and endpoints from the environment, as the tools of each provider do.

    Args:
        uri: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or https://HOST/PATH; a file may end in
            #sha256=HEX.
    """

    def __init__(self, uri: str) -> None:
        import obstore
        from obstore.exceptions import BaseError

        self.uri = redacted(uri)  # with the digest, so that the lock file tells one from another
        uri, _, digest = uri.partition("#")
        if not re.fullmatch("(sha256=[0-9a-f]{64})?", digest):
            raise PullError(f"'#{digest}': expected #sha256= and 64 hexadecimal digits")
        with explained(self.uri, BaseError, ValueError, FileNotFoundError):
            self._store = _store(uri)
            self.files = [] if uri.startswith("https:") else list(_listed(self._store))
            self._is_file = not self.files
            if self._is_file:
                meta = obstore.get(self._store, "").meta
                name, expected = urlsplit(uri).path.rpartition("/")[2], digest.replace("=", ":")
                self.files = [RemoteFile(unquote(name), meta["size"], expected, _tag(meta))]
        if digest and not self._is_file:
            raise PullError(f"{self.uri} is a folder; #sha256= is for a file")
        listing = repr(sorted((file.name, file.size, file.tag) for file in self.files))
        self.revision = f"listing:{hashlib.sha256(listing.encode()).hexdigest()[:32]}"

    def fetch(self, tree: Path, arrived: Arrived) -> None:
        """See `Source`."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda file: self._fetch(file, tree / file.name, arrived), self.files))

    def _fetch(self, file: RemoteFile, path: Path, arrived: Arrived) -> None:
        """Write one file, from the end of what is there if the object is surely the same."""
        from obstore.exceptions import BaseError, NotSupportedError, PreconditionError

        path.parent.mkdir(parents=True, exist_ok=True)
        subject = f"{self.uri}, {quote(file.name)}"
        with path.open("ab") as opened, explained(subject, BaseError, FileNotFoundError):
            is_known = bool(file.digest) or file.tag[:1] == '"'  # RFC 9110 13.1.1: strong tags only
            for attempts_left in reversed(range(ATTEMPTS)):
                if not is_known or opened.tell() > file.size:
                    opened.truncate(opened.seek(0))
                try:
                    for chunk in self._chunks(file, opened.tell()):
                        opened.write(chunk)
                        arrived(file.name, opened.tell())
                    return
                except PreconditionError:
                    raise PullError(f"{subject} changed; run the command again") from None
                except BaseError as error:
                    is_known &= not isinstance(error, NotSupportedError)  # it ignores ranges
                    if not attempts_left:
                        raise

    def _chunks(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from an offset on."""
        import obstore

        if start < file.size:
            options: dict[str, Any] = {"range": {"offset": start}} if start else {}
            if file.tag[:1] == '"':
                options["if_match"] = file.tag
            result = obstore.get(self._store, "" if self._is_file else file.name, options=options)
            if (result.meta["size"], _tag(result.meta)) != (file.size, file.tag):
                raise PullError(f"{quote(file.name)} changed; run the command again")
            yield from result.stream(min_chunk_size=1 << 20)


def _store(uri: str) -> Any:
    """Return the store of obstore for an address; plain HTTP is for endpoints that the environment names as such."""
    from obstore.store import HTTPStore, from_url

    names = " ".join(name for name, text in os.environ.items() if text.startswith("http://"))
    is_plain = re.search(r"\b(AWS|AZURE|GOOGLE)_\w*(ENDPOINT|URL)", names) is not None
    make: Any = HTTPStore if uri.startswith("https:") else from_url
    times = {"timeout": timedelta(days=7), "read_timeout": timedelta(seconds=READ_TIMEOUT_S)}
    client = {**times, "allow_http": is_plain and make is from_url}
    return make(uri, client_options=client, retry_config={"max_retries": RETRIES})


def _listed(store: Any) -> Iterator[RemoteFile]:
    """Yield the objects of a store without markers of folders: the key `cats/` of S3 is listed as `cats`."""
    import obstore

    objects = chain.from_iterable(obstore.list(store))
    found = {meta["path"]: meta for meta in islice(objects, MOST_FILES + 1)}
    folders = {str(folder) for name in found for folder in PurePosixPath(name).parents}
    for name, meta in found.items():
        if name and (meta["size"] or name not in folders):
            yield RemoteFile(name, meta["size"], tag=_tag(meta))


def _tag(meta: Any) -> str:
    """Return the ETag of an object, in the quotes that Azure's lists leave out; else the time of its last change."""
    tag: str = meta["e_tag"] or f"modified {meta['last_modified'].isoformat()}"
    return tag if not meta["e_tag"] or tag.startswith(('"', "W/")) else f'"{tag}"'
