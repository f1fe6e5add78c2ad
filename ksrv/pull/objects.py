"""Objects in S3, Google Cloud Storage, Azure Blob Storage and behind https, read by obstore."""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from ksrv.errors import quote
from ksrv.pull.source import MOST_FILES, PullError, RemoteFile, file_name, without_secrets

FILES_AT_ONCE = 4
ATTEMPTS = 3
"""Attempts that bring no new bytes before a file is given up; obstore itself tries each request several times."""
READ_TIMEOUT_S = 30
"""How long a server may send nothing."""
RETRIES = 5
CHUNK_BYTES = 1 << 20
CHANGED = "changed while it was pulled; run the command again"


class ObjectSource:
    """The objects below an address, or the object at it.

    obstore takes credentials and endpoints from the environment, as the tools of each provider do.

    Args:
        uri: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or https://HOST/PATH; a file may end in
            #sha256=HEX.
    """

    def __init__(self, uri: str) -> None:
        uri, mark, digest = uri.partition("#")
        if mark and not re.fullmatch("sha256=[0-9a-f]{64}", digest):
            raise PullError(f"'#{digest}': expected #sha256= and 64 hexadecimal digits")
        self.uri = without_secrets(uri)
        self._stopped = False
        self._lock = threading.Lock()
        with _explained(self.uri):
            self._store = _store(uri)
            self.files = [] if uri.startswith("https:") else list(_listed(self._store))
            self._is_file = not self.files
            if self._is_file:
                import obstore

                meta = obstore.get(self._store, "").meta
                name = unquote(file_name(uri))
                expected = digest.replace("=", ":")
                self.files = [RemoteFile(name, meta["size"], expected, _tag(meta))]
        if mark and not self._is_file:
            raise PullError(f"{self.uri} is a folder; #sha256= is for a file")
        listing = repr(sorted((file.name, file.size, file.tag) for file in self.files))
        self.revision = "listing:" + hashlib.sha256(listing.encode()).hexdigest()[:32]

    def fetch(self, tree: Path, advance: Callable[[int], None]) -> None:
        """See `Source`."""
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            tasks = [pool.submit(self._fetch, file, tree, advance) for file in self.files]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                self._stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch(self, file: RemoteFile, tree: Path, advance: Callable[[int], None]) -> None:
        """Write one file, from the end of what is there if the object is surely the same."""
        from obstore.exceptions import BaseError, NotSupportedError, PreconditionError

        path = tree / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        is_known = bool(file.digest) or file.tag.startswith(
            '"'
        )  # RFC 9110 13.1.1: strong tags only
        failures = most = reported = 0
        with path.open("r+b") as opened, _explained(self.uri, file.name):
            while True:
                size = opened.seek(0, os.SEEK_END)
                opened.truncate(opened.seek(size if is_known and size <= file.size else 0))
                try:
                    for chunk in chain([b""], self._chunks(file, opened.tell())):
                        opened.write(chunk)
                        with self._lock:
                            advance(opened.tell() - reported)
                        reported = opened.tell()
                    return
                except PreconditionError:
                    raise
                except NotSupportedError:  # the server ignores ranges
                    is_known = False
                except BaseError:
                    failures, most = (0, reported) if reported > most else (failures + 1, most)
                    if failures >= ATTEMPTS:
                        raise

    def _chunks(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from an offset on."""
        import obstore

        if start == file.size:
            return
        options: dict[str, Any] = {"range": {"offset": start}} if start else {}
        if file.tag.startswith('"'):
            options["if_match"] = file.tag
        result = obstore.get(self._store, "" if self._is_file else file.name, options=options)
        if (result.meta["size"], _tag(result.meta)) != (file.size, file.tag):
            raise PullError(f"{quote(file.name)} {CHANGED}")
        for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
            if self._stopped:
                raise PullError("another file failed")
            yield chunk


def _store(uri: str) -> Any:
    """Return the store of obstore for an address; plain HTTP is for endpoints that the environment names as such."""
    from obstore.store import HTTPStore, from_url

    is_plain = any(
        re.match("(AWS|AZURE|GOOGLE)_.*(ENDPOINT|URL)", name) and value.startswith("http://")
        for name, value in os.environ.items()
    )
    client = {
        "timeout": timedelta(days=7),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "allow_http": is_plain and not uri.startswith("https:"),
    }
    retries = {"max_retries": RETRIES}
    make: Any = HTTPStore if uri.startswith("https:") else from_url
    return make(uri, client_options=client, retry_config=retries)


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


@contextmanager
def _explained(uri: str, name: str = "") -> Iterator[None]:
    """Turn obstore's errors, which are long and quote credentials, into sentences."""
    from obstore.exceptions import BaseError, PreconditionError

    try:
        yield
    except PreconditionError as error:
        raise PullError(f"{quote(name)} {CHANGED}") from error
    except (BaseError, ValueError, FileNotFoundError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of this machine's file system
        text, _, details = str(error).partition("Debug source:")
        causes = re.findall(r'(?:error|message): "([^"]+)"|InvalidCertificate\(\s*(\w+)', details)
        cause = f"; {''.join(causes[-1])}" if causes else ""
        text = re.sub(r"^Generic \w+ error: ", "", " ".join(without_secrets(text).split()))
        raise PullError(
            f"{uri}{f', {quote(name)}' if name else ''}: {text[:500]}{cause}"
        ) from error
