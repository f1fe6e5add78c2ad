"""The calls of the Hugging Face Hub that huggingface_hub makes to read a model, answered from memory."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.servers.http_handlers import QuietHandler, handlers_served


@dataclass
class Hub:
    """A Hub with one model.

    Attributes:
        files: The content of each file.
        large: Names of files that the Hub keeps in its store of large files (LFS).
        sent: Content that is sent instead of a file's.
        revisions: The commits of branches and tags.
        token: The token to ask for; "" for none.
        cut_after: Bytes after which the next body of a large file ends; 0 for never.
        seen: Method, path and Range of each request.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    sent: dict[str, bytes] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    token: str = ""
    cut_after: int = 0
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def entry(self, name: str) -> dict[str, Any]:
        """Return the entry of a file in a listing."""
        content = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "oid": blob, "size": len(content), "path": name}
        if name in self.large:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return entry


class _Handler(QuietHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.seen.append((self.command, path, self.headers.get("Range")))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo")
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) == "owner/cats":
            self._api(parts[4:])
        elif parts[:3] == ["owner", "cats", "resolve"]:
            self._file("/".join(parts[4:]))
        else:
            self._refuse(404, "RepoNotFound")

    def _api(self, parts: list[str]) -> None:
        hub, revision = self.hub, parts[1] if len(parts) > 1 else "main"
        commit = hub.revisions.get(revision, revision if len(revision) == 40 else "")
        if not commit:
            self._refuse(404, "RevisionNotFound")
        elif parts[:1] == ["tree"]:
            self._answer(200, json.dumps([hub.entry(name) for name in hub.files]).encode())
        else:
            document = {"id": "owner/cats", "modelId": "owner/cats", "sha": commit, "siblings": []}
            self._answer(200, json.dumps(document).encode())

    def _file(self, name: str) -> None:
        hub = self.hub
        if name not in hub.files:
            self._refuse(404, "EntryNotFound")
            return
        entry, content = hub.entry(name), hub.sent.get(name, hub.files[name])
        tag = entry["lfs"]["oid"] if name in hub.large else entry["oid"]
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": hub.revisions["main"]}
        if name in hub.large:
            headers |= {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(entry["size"])}
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        if hub.cut_after and name in hub.large and self.command == "GET":
            self._answer(206 if start else 200, body, headers, body[: hub.cut_after])
            hub.cut_after, self.close_connection = 0, True
        else:
            self._answer(206 if start else 200, body, headers)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        sent: bytes | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if sent is None else sent)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve a Hub on this machine."""
    hub = Hub()
    with handlers_served(_Handler, hub=hub) as hub.url:
        yield hub
