"""Models in an OCI image layout on disk: a folder, or the tar of one. The layers are applied, but links are refused.

Specification: https://github.com/opencontainers/image-spec (image-layout.md, layer.md).
"""

import gzip
import hashlib
import platform
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from ksrv.errors import quote
from ksrv.pull.source import Arrived, PullError, RemoteFile, explained, paths_above

GROWTH = 20
"""How many times larger than its layer the content of a layer may be, beyond `SMALL_BYTES`."""
SMALL_BYTES = 64 << 20
DOCUMENT_BYTES = 4 << 20
MODELS = "models/"
"""The folder of an image that is the model, if the image has it: KServe's convention for model images."""
NAME = "org.opencontainers.image.ref.name"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
DAMAGES = (tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, OSError, RecursionError)


class Node(msgspec.Struct, rename="camel"):
    """An index, a manifest, or an entry of these: a manifest or a layer."""

    digest: str = ""
    media_type: str = ""
    annotations: dict[str, str] = {}
    platform: dict[str, Any] = {}
    manifests: "list[Node]" = []
    layers: "list[Node]" = []


class OciSource:
    """The files of an image, or of an artifact whose layers name their files (ORAS, ModelPack).

    Args:
        uri: oci:PATH[:TAG].
    """

    def __init__(self, uri: str) -> None:
        self.uri, path = uri, uri.removeprefix("oci:")
        path, _, tag = (path, "", "") if Path(path).exists() else path.rpartition(":")
        self._folder = Path(path)
        with explained(uri, *DAMAGES):
            self._archive = None
            if not self._folder.is_dir():
                self._archive = tarfile.open(path, "r:")  # noqa: SIM115 - read until the end
                self._members = {item.name.removeprefix("./"): item for item in self._archive}
            self.revision, self._layers = self._manifest(tag)
        found = self._listed()
        start = MODELS if any(name.startswith(MODELS) for name in found) else ""
        self._start = len(start)
        self._found = {name: place for name, place in found.items() if name.startswith(start)}
        self.files = [RemoteFile(name[len(start) :], at[1]) for name, at in self._found.items()]
        if links := [quote(file.name) for file in self.files if file.size < 0]:
            raise PullError(f"{uri}: {links[0]} is a link or a device; put the file in its place")

    def fetch(self, tree: Path, arrived: Arrived) -> None:
        """See `Source`."""
        for number, layer in enumerate(self._layers):
            for name, size, data in self._entries(layer):
                if self._found.get(name) == (number, size) and data is not None:
                    path = tree / name[self._start :]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as opened:
                        shutil.copyfileobj(data, opened, 1 << 20)
                    arrived(name[self._start :], size)

    def _manifest(self, tag: str) -> tuple[str, list[Node]]:
        """Return the digest and the layers of the manifest with a tag, or of the only one, for this processor."""
        listed = _decode(self._open("index.json")).manifests
        fitting = [node for node in listed if not tag or node.annotations.get(NAME) == tag]
        while len(fitting) == 1:
            document = _decode(self._blob(fitting[0].digest))
            if not document.manifests:
                return fitting[0].digest, document.layers
            listed = document.manifests
            fitting = [n for n in listed if n.platform.get("architecture", MACHINE) == MACHINE]
        tags = ", ".join(quote(node.annotations.get(NAME, node.digest)) for node in listed)
        raise PullError(f"{self.uri}: {len(fitting)} images fit; expected one of the tags {tags}")

    def _listed(self) -> dict[str, tuple[int, int]]:
        """Return the number of the layer and the size of each file that the layers leave; -1 for a link."""
        found: dict[str, tuple[int, int]] = {}
        for number, layer in enumerate(self._layers):
            added: dict[str, tuple[int, int]] = {}
            removed = set()
            for name, size, _ in self._entries(layer):
                folder, slash, last = name.rpartition("/")
                if last.startswith(".wh."):  # layer.md: a whiteout hides files of the layers below
                    removed.add(folder if last == ".wh..wh..opq" else folder + slash + last[4:])
                elif name in added:
                    raise PullError(f"{self.uri}: a layer has {quote(name)} twice")
                else:
                    added[name] = (number, size)
            kept = [name for name in found if removed.isdisjoint({"", name, *paths_above(name)})]
            found = {name: found[name] for name in kept} | added
        return found

    def _entries(self, layer: Node) -> Iterator[tuple[str, int, IO[bytes] | None]]:
        """Yield name, size and content of each file of a layer; -1 and None for links and the like."""
        with explained(f"{self.uri}, a layer of type {quote(layer.media_type)}", *DAMAGES):
            blob, notes = self._blob(layer.digest), layer.annotations
            is_gzip, size = blob.read(2) == b"\x1f\x8b", blob.seek(0, 2)
            blob.seek(0)
            title = notes.get(
                "org.opencontainers.image.title", notes.get("org.cncf.model.filepath")
            )
            if title and notes.get("io.deis.oras.content.unpack") != "true":
                yield title, size, blob
                return
            packed: Any = gzip.GzipFile(fileobj=blob) if is_gzip else blob
            bounded: Any = _Bounded(packed, size * GROWTH + SMALL_BYTES)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if member.isreg() and not member.issparse():
                        yield name, member.size, archive.extractfile(member)
                    elif not member.isdir():
                        yield name, -1, None

    def _open(self, name: str) -> IO[bytes]:
        opened = self._archive and self._archive.extractfile(self._members[name])
        return opened or (self._folder / name).open("rb")

    def _blob(self, digest: str) -> Any:
        """Open a blob whose content has its digest."""
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise PullError(f"{self.uri}: {quote(digest)} is no digest; expected sha256:HEX")
        blob: Any = self._open(f"blobs/{digest.replace(':', '/')}")
        actual = f"sha256:{hashlib.file_digest(blob, 'sha256').hexdigest()}"
        if actual != digest:
            raise PullError(f"{self.uri}: the blob {digest} has the digest {actual}")
        blob.seek(0)
        return blob


class _Bounded:
    """A stream that must end within a number of bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise PullError("a layer grows too much when it is unpacked; store it uncompressed")
        return data


def _decode(opened: IO[bytes]) -> Node:
    return msgspec.json.decode(opened.read(DOCUMENT_BYTES), type=Node)
