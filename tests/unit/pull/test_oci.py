"""OCI image layouts: what tools write, and what nobody should."""

import gzip
import hashlib
import io
import json
import tarfile

import pytest

from ksrv.pull.folder import differences, pull_into
from ksrv.pull.source import PullError, open_source

TAR = "application/vnd.oci.image.layer.v1.tar"
INDEX = "application/vnd.oci.image.index.v1+json"
TITLE = "org.opencontainers.image.title"


def tar_of(*members, form=tarfile.PAX_FORMAT):
    """Return a tar of (name, content) or of finished members."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                name, content = member
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


class Layout:
    """An image layout that a test writes."""

    def __init__(self, folder):
        self.folder, self.manifests = folder, []
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content, kind="", **notes):
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(content)
        entry = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}
        return entry | ({"annotations": notes} if notes else {})

    def document(self, content, **more):
        return self.blob(json.dumps({"schemaVersion": 2, **content}).encode()) | more

    def image(self, *layers, tag=None, **more):
        """Add an image of layers, which are tars or the entries of blobs."""
        entries = [self.blob(layer, TAR) if isinstance(layer, bytes) else layer for layer in layers]
        entry = self.document({"layers": entries, "config": {}}, **more)
        if tag:
            entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
        self.manifests.append(entry)
        self.write()
        return entry

    def write(self):
        (self.folder / "index.json").write_text(json.dumps({"manifests": self.manifests}))

    def packed(self, path, prefix=""):
        """Write the layout as an archive."""
        with tarfile.open(path, "w") as archive:
            for file in sorted(self.folder.rglob("*")):
                archive.add(
                    file, prefix + file.relative_to(self.folder).as_posix(), recursive=False
                )
        return path


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


@pytest.fixture
def pulled(layout, tmp_path):
    def run(uri=None):
        folder = tmp_path / "models/cats"
        source = open_source(uri or f"oci:{layout.folder}")
        pull_into(folder, source, lambda *counts: None)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    return run


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_layers_are_applied_in_order(layout, pulled, tmp_path, pack):
    first = tar_of(special("1", tarfile.DIRTYPE), ("1/a", b"old"), ("./1/b", b"b"))
    layout.image(pack(first), pack(tar_of(("1/a", b"new"), ("c", b""))))
    assert pulled() == {"1/a": b"new", "1/b": b"b", "c": b""}
    assert differences(tmp_path / "models/cats", f"oci:{layout.folder}") == []


@pytest.mark.parametrize("prefix", ["", "./"])
def test_archive_of_a_layout(layout, pulled, tmp_path, prefix):
    layout.image(tar_of(("a", b"x" * 3_000_000)))
    archive = layout.packed(tmp_path / "image.tar", prefix)
    assert pulled(f"oci:{archive}") == {"a": b"x" * 3_000_000}


@pytest.mark.parametrize(
    ("whiteout", "left"),
    [
        ("1/.wh.a", {"1/b", "1/sub/c", "top"}),
        ("1/.wh.sub", {"1/a", "1/b", "top"}),
        (".wh.1", {"top"}),
        ("1/.wh..wh..opq", {"top"}),
        (".wh..wh..opq", set()),
        ("1/.wh.none", {"1/a", "1/b", "1/sub/c", "top"}),
        ("../.wh.layout", {"1/a", "1/b", "1/sub/c", "top"}),
        ("/.wh.1", {"1/a", "1/b", "1/sub/c", "top"}),
    ],
)
def test_whiteouts_hide_files_of_lower_layers_only(layout, pulled, whiteout, left):
    lower = tar_of(("1/a", b""), ("1/b", b""), ("1/sub/c", b""), ("top", b""))
    layout.image(lower, tar_of(("1/new", b""), (whiteout, b"")))
    assert pulled().keys() == left | {"1/new"}
    assert layout.folder.exists()


def test_model_images_of_kserve_are_their_models_folder(layout, pulled):
    system = tar_of(special("bin/sh", tarfile.SYMTYPE, "busybox"), ("etc/passwd", b""))
    layout.image(system, tar_of(("models/1/model.onnx", b"weights")))
    assert pulled() == {"1/model.onnx": b"weights"}


def test_layers_that_name_their_file(layout, pulled):
    weights = layout.blob(b"weights", TAR, **{TITLE: "1/model.onnx"})
    config = layout.blob(
        b"{}", "application/vnd.cncf.model.weight.config.v1.raw", **{"org.cncf.model.filepath": "c"}
    )
    folder = layout.blob(
        gzip.compress(tar_of(("sub/a", b"a"))),
        TAR + "+gzip",
        **{TITLE: "sub", "io.deis.oras.content.unpack": "true"},
    )
    layout.image(weights, config, folder)
    assert pulled() == {"1/model.onnx": b"weights", "c": b"{}", "sub/a": b"a"}


def test_tag_chooses_the_image(layout, pulled):
    layout.image(tar_of(("a", b"1")), tag="v1")
    layout.image(tar_of(("a", b"2")), tag="v2")
    assert pulled(f"oci:{layout.folder}:v2") == {"a": b"2"}


@pytest.mark.parametrize("tag", ["", ":v3"])
def test_tag_that_does_not_choose_one_names_the_tags(layout, pulled, tag):
    layout.image(tar_of(("a", b"1")), tag="v1")
    layout.image(tar_of(("a", b"2")), tag="v2")
    with pytest.raises(PullError, match="expected one of the tags 'v1', 'v2'"):
        pulled(f"oci:{layout.folder}{tag}")


def test_index_in_an_index_chooses_this_processor(layout, pulled, monkeypatch):
    monkeypatch.setattr("ksrv.pull.oci.MACHINE", "arm64")
    images = [
        layout.image(tar_of(("a", name.encode())), platform={"architecture": name})
        for name in ("amd64", "arm64", "unknown")
    ]
    layout.manifests = [layout.document({"manifests": images}, mediaType=INDEX)]
    layout.write()
    assert pulled() == {"a": b"arm64"}


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (special("a", tarfile.SYMTYPE, "/etc/passwd"), "is a link or a device"),
        (special("a", tarfile.LNKTYPE, "b"), "is a link or a device"),
        (special("a", tarfile.CHRTYPE), "is a link or a device"),
        (special("a", tarfile.FIFOTYPE), "is a link or a device"),
        (("../a", b""), "expected a relative path"),
        (("/etc/a", b""), "expected a relative path"),
        (("b/../../a", b""), "expected a relative path"),
        (("a\nb", b""), "expected a relative path"),
        (("b", b"again"), "twice"),
        (("B", b"other case"), "twice"),
        (("b/c", b"below a file"), "twice"),
    ],
)
def test_hostile_members_are_refused(layout, pulled, tmp_path, member, says):
    layout.image(tar_of(("b", b""), member))
    with pytest.raises(PullError, match=says):
        pulled()
    assert not (tmp_path / "models/cats").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"layout", "models"}


def test_sparse_member_is_refused(layout, pulled):
    data = bytearray(tar_of(("a", b""), form=tarfile.GNU_FORMAT))
    data[156:157] = tarfile.GNUTYPE_SPARSE
    data[386 + 24 * 4 + 1 : 386 + 24 * 4 + 13] = b"%011o\0" % (1 << 32)  # its real size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    layout.image(bytes(data))
    with pytest.raises(PullError, match="is a link or a device"):
        pulled()


def test_link_below_a_whiteout_does_not_matter(layout, pulled):
    lower = tar_of(special("a", tarfile.SYMTYPE, "/etc/passwd"), ("b", b""))
    layout.image(lower, tar_of((".wh.a", b"")))
    assert pulled() == {"b": b""}


def bomb(kind):
    if kind == "content":
        return gzip.compress(tar_of(("a", bytes(200_000_000))), 1)
    if kind == "header":
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": "x" * 200_000_000}
        return gzip.compress(tar_of(info), 1)
    return gzip.compress(b"".join(tar_of((f"f{n}", b""))[:512] for n in range(200_000)), 1)


@pytest.mark.parametrize("kind", ["content", "header", "many files"])
def test_bombs_are_refused_before_anything_is_written(layout, pulled, tmp_path, kind):
    layout.image(bomb(kind))
    with pytest.raises(PullError, match=r"grows too much|expected 1 to"):
        pulled()
    assert not (tmp_path / "models/cats").exists()


@pytest.mark.parametrize("kind", ["layer", "manifest"])
def test_blob_with_another_digest_is_refused(layout, pulled, kind):
    entry = layout.image(data := tar_of(("a", b"weights")))
    digest = hashlib.sha256(data).hexdigest() if kind == "layer" else entry["digest"][7:]
    path = layout.folder / "blobs/sha256" / digest
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(PullError, match="has the digest"):
        pulled()


@pytest.mark.parametrize(
    "digest", ["sha256:../../../../etc/passwd", "md5:" + "0" * 32, "", "sha256:" + "A" * 64, "/etc"]
)
def test_digest_in_another_form_is_refused(layout, pulled, digest):
    layout.manifests = [{"digest": digest}]
    layout.write()
    with pytest.raises(PullError, match="is no digest"):
        pulled()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"manifests": 1}',
        '{"manifests": [{"digest": 1}]}',
        "\0" * 100,
        "[" * 9999,
        '{"manifests": [' * 9999,
    ],
)
def test_damaged_index_is_refused(layout, pulled, text):
    (layout.folder / "index.json").write_text(text)
    with pytest.raises(PullError, match=f"oci:{layout.folder}: "):
        pulled()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"nonsense", b"\x28\xb5\x2f\xfd" + bytes(600), b"\x1f\x8bxx", b"x" * 2000,
        gzip.compress(tar_of(("a", bytes(100_000))))[:60], tar_of(("a", bytes(100_000)))[:5000],
    ],
    ids=range(7),
)  # fmt: skip
def test_damaged_layers_are_refused(layout, pulled, tmp_path, data):
    layout.image(layout.blob(data, TAR + "+zstd"))
    with pytest.raises(PullError):
        pulled()
    assert not (tmp_path / "models/cats").exists()


def test_missing_files_are_reported(tmp_path, layout, pulled):
    layout.image(tar_of(("a", b"x")))
    with pytest.raises(OSError, match="none"):
        pulled(f"oci:{tmp_path / 'none'}:v1")
    archive = layout.packed(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "less.tar", "w") as less:
        less.add(layout.folder / "index.json", "index.json")
    with pytest.raises(PullError, match="blobs/sha256"):
        pulled(f"oci:{tmp_path / 'less.tar'}")
    assert pulled(f"oci:{archive}") == {"a": b"x"}
