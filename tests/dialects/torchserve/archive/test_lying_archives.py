"""Archives whose entries lie about themselves: refused by a sentence that names archive and entry, with nothing left."""

import gzip
import io
import json
import os
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.dialects.registry import formats
from ksrv.dialects.torchserve.archive.archive import ArchiveError, ArchiveLimits, open_archive
from ksrv.repository.layout import Repository

MANIFEST = "MAR-INF/MANIFEST.json"
HANDLER = b"def handle(data, context):\n    return data\n"


def manifest(**own: Any) -> bytes:
    return json.dumps({"model": {"modelName": "own", "handler": "h.py", **own}}).encode()


def write_zip(path: Path, *entries: tuple[zipfile.ZipInfo | str, bytes], **own: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # two entries of one name
        for name, content in ((MANIFEST, manifest(**own)), ("h.py", HANDLER), *entries):
            archive.writestr(name, content)
    return path


def write_tgz(path: Path, *entries: tuple[tarfile.TarInfo, bytes], cut: int = 0) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in ((MANIFEST, manifest()), ("h.py", HANDLER)):
            archive.addfile(tar_entry(name, size=len(content)), io.BytesIO(content))
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    content = packed.getvalue()
    path.write_bytes(gzip.compress(content[:cut] if cut else content))
    return path


def tar_entry(name: str, **facts: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(info, key, value)
    return info


def zip_entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def patched(path: Path, name: str, offset: int, value: bytes) -> Path:
    """Overwrite a field of an entry's record in the central directory, as hostile archives do."""
    content = bytearray(path.read_bytes())
    at = content.rindex(name.encode()) - 46 + offset
    assert content[at - offset : at - offset + 4] == b"PK\x01\x02"
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return path


LONG = b"a" * 100


def lying(kind: str, folder: Path) -> Path:
    mar, tgz = folder / "own.mar", folder / "own.tar.gz"
    match kind:
        case "listed too small":
            return patched(write_zip(mar, ("w.bin", LONG)), "w.bin", 24, b"\x05\0\0\0")
        case "listed too small, with the checksum of so much":
            crc = zipfile.crc32(LONG[:5]).to_bytes(4, "little")
            write_zip(mar, ("w.bin", LONG))
            return patched(patched(mar, "w.bin", 24, b"\x05\0\0\0"), "w.bin", 16, crc)
        case "listed too large":
            return patched(write_zip(mar, ("w.bin", LONG)), "w.bin", 24, b"\xff\0\0\0")
        case "data elsewhere":
            return patched(write_zip(mar, ("w.bin", LONG)), "w.bin", 42, b"\0\0\0\0")
        case "encrypted":
            return patched(write_zip(mar, ("w.bin", LONG)), "w.bin", 8, b"\x01\0")
        case "unknown compression":
            return patched(write_zip(mar, ("w.bin", LONG)), "w.bin", 10, b"\x63\0")
        case "name that is not UTF-8":
            write_zip(mar, ("w.bi\u00fc", LONG))
            return patched(mar, "w.bi\u00fc", 46 + 4, b"\xff\xff")
        case "twice":
            return write_zip(mar, ("w.bin", b"1"), ("w.bin", b"2"))
        case "twice in a tar":
            return write_tgz(tgz, *[(tar_entry("w.bin", size=1), b"1")] * 2)
        case "file as a folder":
            return write_zip(mar, ("w.bin", b"1"), ("w.bin/x", b"2"))
        case "folder with content":
            return write_zip(mar, ("w.bin/", b"2"))
        case "file that claims a folder":
            return write_zip(mar, (zip_entry("w.bin", stat.S_IFDIR | 0o755), b"2"))
        case "folder that claims a file":
            return write_zip(mar, (zip_entry("w.bin/", stat.S_IFREG | 0o755), b""))
        case "long name":
            return write_zip(mar, ("w.bin" * 60, b"2"))
        case "nested folders":
            return write_zip(mar, *((f"{'w.bin/' * depth}", b"") for depth in range(1, 600)))
        case "hard link":
            info = tar_entry("w.bin", type=tarfile.LNKTYPE, linkname="/etc/passwd")
            return write_tgz(tgz, (info, b""))
        case "device":
            return write_tgz(tgz, (tar_entry("w.bin", type=tarfile.CHRTYPE), b""))
        case "cut":
            mar.write_bytes(write_zip(mar, ("w.bin", LONG)).read_bytes()[:-30])
            return mar
        case "cut in a file of the tar":
            return write_tgz(tgz, (tar_entry("w.bin", size=2000), bytes(2000)), cut=3000)
        case "cut in a header of the tar":
            return write_tgz(tgz, (tar_entry("w.bin", size=2000), bytes(2000)), cut=2200)
        case "damaged header of a tar":
            content = bytearray(gzip.decompress(write_tgz(tgz).read_bytes()))
            content[1024 + 150] ^= 1
            tgz.write_bytes(gzip.compress(content))
            return tgz
        case "damaged checksum of a gzip":
            content = bytearray(write_tgz(tgz).read_bytes())
            content[-6] ^= 1
            tgz.write_bytes(content)
            return tgz
        case "less than no bytes":
            info = tar_entry("w.bin", size=0)
            header = bytearray(info.tobuf())
            header[124:136] = b"\xff" * 12
            header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
            tgz.write_bytes(gzip.compress(header + bytes(1024)))
            return tgz
        case "headers of headers":
            one = tar_entry("x", type=tarfile.XHDTYPE, size=0).tobuf()
            tgz.write_bytes(gzip.compress(one * 2000 + bytes(1024)))
            return tgz
        case "huge header":
            one = tar_entry("x", type=tarfile.XHDTYPE, size=64 << 20).tobuf()
            tgz.write_bytes(gzip.compress(one + bytes(64 << 20)))
            return tgz
        case _:
            raise AssertionError(kind)


LIES = {
    "listed too small": "own.mar: 'w.bin' cannot be unpacked: Bad CRC-32",
    "listed too small, with the checksum of so much": "own.mar: 'w.bin' cannot be unpacked: Bad CRC-32",
    "listed too large": "own.mar: 'w.bin' cannot be unpacked: it has 100 bytes, and 255 are listed",
    "data elsewhere": "own.mar: 'w.bin' cannot be unpacked: File name in directory",
    "encrypted": "own.mar: 'w.bin' is encrypted; make the archive without a password",
    "unknown compression": "own.mar: 'w.bin' cannot be unpacked: That compression method is not supported",
    "name that is not UTF-8": "own.mar cannot be unpacked: 'utf-8' codec can't decode",
    "twice": "own.mar: the archive has two entries 'w.bin'",
    "twice in a tar": "own.tar.gz: the archive has two entries 'w.bin'",
    "file as a folder": "own.mar: 'w.bin/x' cannot be unpacked: File exists",
    "folder with content": "own.mar: 'w.bin/' is a folder, but has content",
    "file that claims a folder": "own.mar: 'w.bin' is a folder by its name or by its attributes",
    "folder that claims a file": "own.mar: 'w.bin/' is a folder by its name or by its attributes",
    "long name": "cannot be unpacked: File name too long",
    "nested folders": "lies deeper than 64 folders",
    "hard link": "own.tar.gz: 'w.bin' is a link or a device; make the archive of files and folders alone",
    "device": "own.tar.gz: 'w.bin' is a link or a device",
    "cut": "own.mar cannot be unpacked: File is not a zip file; copy the archive again, or make it again",
    "cut in a file of the tar": "own.tar.gz cannot be unpacked: unexpected end of data",
    "cut in a header of the tar": "own.tar.gz: the archive is damaged after its first 2 entries; copy the archive again, or make it again",
    "damaged header of a tar": "own.tar.gz: the archive is damaged after its first 1 entries",
    "damaged checksum of a gzip": "own.tar.gz cannot be unpacked: CRC check failed",
    # tarfile refuses it by itself since CVE-2025-8194, in Debian's Python 3.11.2 too: "invalid offset".
    "less than no bytes": "; copy the archive again, or make it again",
    "headers of headers": "own.tar.gz cannot be unpacked: its headers are nested too deep",
    "huge header": "own.tar.gz: the header at byte 512 claims 67108864 bytes, and the most is 8388608",
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_is_named_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    (store := tmp_path / "store").mkdir()
    path = lying(kind, store)
    with pytest.raises(ArchiveError) as caught:
        open_archive(path, tmp_path / "cache")
    assert LIES[kind] in str(caught.value), caught.value
    assert list((tmp_path / "cache").iterdir()) == []
    assert sorted(tmp_path.iterdir()) == [tmp_path / "cache", store]


def test_names_that_differ_by_case_are_two_files(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "own.mar", ("W.bin", b"1"), ("w.bin", b"2"))
    folder = open_archive(path, tmp_path / "cache")
    assert ((folder / "W.bin").read_bytes(), (folder / "w.bin").read_bytes()) == (b"1", b"2")


def test_a_header_of_a_tar_is_within_its_limits(tmp_path: Path) -> None:
    """Headers count as well: tarfile reads and inflates them before it names an entry."""
    path = tmp_path / "own.tar.gz"
    one = tar_entry("x", type=tarfile.XGLTYPE, size=4 << 20).tobuf() + bytes(4 << 20)
    path.write_bytes(gzip.compress(one * 40, 1))
    with pytest.raises(ArchiveError, match="unpacks to more than 1000 bytes"):
        open_archive(path, tmp_path / "cache", ArchiveLimits(size=1000))


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.mar")
    with pytest.raises(ArchiveError, match=r"own\.mar is neither a file nor a folder"):
        open_archive(tmp_path / "own.mar", tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "MAR-INF/MANIFEST.json is missing, so it is not a TorchServe archive; make the archive with"),
        (manifest(modelName="a b"), "modelName is 'a b'; a name has 1 to 128 letters"),
        (manifest(modelVersion="1/2"), "modelVersion is '1/2'; a version has 1 to 64 letters"),
        (b"", "MAR-INF/MANIFEST.json cannot be read: "),
        (b'{"model": {"modelName": ["own"]}}', "Expected `str`, got `array` - at `$.model.modelName`"),
        (b'{"model": {"modelName": null}}', "missing required field `modelName` - at `$.model`"),
        (b'{"model": {"modelName": "own", "handler": [null]}}', "Expected `str`, got `array` - at `$.model.handler`"),
        (b'{"model": null}', "missing required field `model`"),
        (b"null", "Expected `object`, got `null`"),
        (b'{"model": {"modelName": "own"}, "x": ' + b"[" * 5000, "MAR-INF/MANIFEST.json is nested too deep"),
        (b'{"model": "' + bytes(2 << 20), "MAR-INF/MANIFEST.json is longer than 1048576 bytes"),
        (manifest(handler="a/../../h.py"), "handler names 'a/../../h.py', which is not inside"),
        (manifest(sourceVocab="/etc/passwd"), "sourceVocab names '/etc/passwd', which is not inside"),
        (manifest(serializedFile="w\0.pt"), r"serializedFile names 'w\x00.pt', which is not inside"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_named_and_leaves_nothing(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "own.mar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("h.py", HANDLER)
        if content is not None:
            archive.writestr(MANIFEST, content)
    with pytest.raises(ArchiveError) as caught:
        open_archive(path, tmp_path / "cache")
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("c.yaml", b"a: " + b"x" * (2 << 20), "c.yaml is longer than 1048576 bytes"),
        ("c.yaml", b"a: \xff", "c.yaml cannot be read: 'utf-8' codec can't decode byte 0xff"),
        ("c.yaml", b"[" * 5000, "c.yaml is nested too deep to be read"),
        ("r.txt", b"x" * (2 << 20), "r.txt is longer than 1048576 bytes"),
        ("r.txt", b"\xff", "r.txt cannot be read: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, text: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (store := tmp_path / "store").mkdir()
    path = write_zip(
        store / "own.mar", (name, content), configFile="c.yaml", requirementsFile="r.txt"
    )
    if name == "r.txt":
        path = write_zip(path, (name, content), requirementsFile="r.txt")
    [entry] = Repository([store], formats()).scan().values()
    assert entry.error is not None
    assert entry.error.startswith(f"{path}: ")
    assert text in entry.error


@pytest.mark.parametrize("name", ["../out", "/../../out", "x/../../out", "ABSOLUTE/out", "."])
def test_an_import_writes_into_its_repository_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    name = name.replace("ABSOLUTE", str(tmp_path))
    path = write_zip(tmp_path / "own.mar", modelName=name)
    result = CliRunner().invoke(main, ["import", str(path), "--to", str(tmp_path / "models")])
    assert result.exit_code == 1
    assert f"modelName is {name!r}" in result.output
    assert sorted(tmp_path.iterdir()) == [path, temporary]
