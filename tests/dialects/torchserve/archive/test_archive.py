import io
import os
import stat
import tarfile
import zipfile

import pytest

from ksrv.dialects.torchserve.archive.archive import (
    ArchiveError,
    ArchiveLimits,
    default_cache,
    open_archive,
    read_manifest,
)
from ksrv.dialects.torchserve.archive.model_config import archived_config
from tests.support.tree import tree

MANIFEST = b'{"runtime": "python", "model": {"modelName": "lin", "handler": "lin_handler.py"}}'


def write_zip(path, files, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def write_tgz(path, files, top="lin/"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files:
            info = tarfile.TarInfo(top + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


FILES = [("MAR-INF/MANIFEST.json", MANIFEST), ("lin_handler.py", b"x = 1"), ("sub/a.txt", b"a")]


@pytest.mark.parametrize("kind", ["deflated", "stored", "tgz", "folder"])
def test_every_format_opens_alike(tmp_path, kind):
    if kind == "folder":
        path = tmp_path / "lin"
        for name, content in FILES:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif kind == "tgz":
        path = write_tgz(tmp_path / "lin.tar.gz", FILES)
    else:
        compression = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
        path = write_zip(tmp_path / "lin.mar", FILES, compression)
    folder = open_archive(path, tmp_path / "cache")
    assert tree(folder) == dict(FILES)
    assert read_manifest(folder).model.handler == "lin_handler.py"


def test_archive_is_unpacked_once_in_a_process_and_again_after_a_change(tmp_path):
    path = write_zip(tmp_path / "lin.mar", FILES)
    first = open_archive(path, tmp_path / "cache")
    (first / "mark").write_bytes(b"")
    assert open_archive(path, tmp_path / "cache") == first
    assert (first / "mark").exists()
    write_zip(path, [*FILES, ("more", b"1")])
    second = open_archive(path, tmp_path / "cache")
    assert second != first
    assert not (second / "mark").exists()


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "a\\..\\out"])
@pytest.mark.parametrize("write", [write_zip, lambda p, f: write_tgz(p, f, top="")])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name, write):
    """CVE-2023-48299."""
    suffix = ".mar" if write is write_zip else ".tar.gz"
    path = write(tmp_path / f"bad{suffix}", [*FILES, (name, b"x")])
    with pytest.raises(ArchiveError, match="leave"):
        open_archive(path, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_links_are_refused(tmp_path):
    """CVE-2026-27905."""
    path = tmp_path / "link.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("link")
        info.type = tarfile.SYMTYPE
        info.linkname = "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(ArchiveError, match="link"):
        open_archive(path, tmp_path / "cache")
    path = tmp_path / "link.mar"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ArchiveError, match="link"):
        open_archive(path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (ArchiveLimits(entries=2), "entries"),
        (ArchiveLimits(size=10), "more than 10 bytes"),
        (ArchiveLimits(ratio=1), "times"),
    ],
)
@pytest.mark.parametrize("write", [write_zip, write_tgz])
def test_limits_hold_and_leave_nothing_behind(tmp_path, limits, text, write):
    suffix = ".mar" if write is write_zip else ".tar.gz"
    path = write(tmp_path / f"big{suffix}", [*FILES, ("zeros", bytes(3 * 1024 * 1024))])
    with pytest.raises(ArchiveError, match=text):
        open_archive(path, tmp_path / "cache", limits)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("suffix", [".mar", ".tar.gz"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 damaged"])
def test_damaged_archives_are_errors(tmp_path, suffix, content):
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content)
    with pytest.raises(ArchiveError):
        open_archive(path, tmp_path / "cache")


def test_the_default_cache_is_private(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = default_cache()
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    os.chmod(folder.parent, 0o777)
    with pytest.raises(ArchiveError, match="only this user"):
        default_cache()


@pytest.mark.parametrize(
    ("version", "read"), [("1", "1"), ("1.10", "1.10"), ('"2"', "2"), ("null", "1.0")]
)
def test_a_manifest_is_read_as_gson_reads_it(tmp_path, version, read):
    """TorchServe's reader takes a number for a text, and null for a key that is left out."""
    text = '{"createdOn": null, "model": {"modelName": "m", "modelVersion": VERSION, "handler": "h.py",'
    text += ' "requirementsFile": null}}'
    files = [("MAR-INF/MANIFEST.json", text.replace("VERSION", version).encode()), ("h.py", b"")]
    folder = open_archive(write_zip(tmp_path / "m.mar", files), tmp_path / "cache")
    model = read_manifest(folder).model
    assert (model.model_version, model.requirements_file) == (read, "")
    assert archived_config(folder, read_manifest(folder))[0].own_version == read
