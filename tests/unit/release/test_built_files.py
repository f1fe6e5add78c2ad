"""The bill of materials in a wheel is complete, and a second build that differs is an error."""

import hashlib
import subprocess

import pytest

from tests.support.paths import ROOT

WHEEL = "ksrv-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl"
URL = "pkg:deb/debian/libnghttp2-14@1.52.0-1%2Bdeb12u3"


@pytest.fixture
def finish(tool, monkeypatch):
    module = tool("finish_wheel")
    monkeypatch.setattr(module, "library", lambda name: ROOT / name)
    package = module.Package("1.52.0-1+deb12u3", URL)
    monkeypatch.setattr(module, "package_of", lambda file: package)
    return module


@pytest.fixture
def unpacked(tmp_path):
    folder = tmp_path / "ksrv-0.1.0"
    (folder / "ksrv/_native").mkdir(parents=True)
    (folder / "ksrv/_native/_core.cpython-311-x86_64-linux-gnu.so").write_bytes(b"ours")
    (folder / "ksrv/_native/libnghttp2.so.14").write_bytes(b"theirs")
    return folder


def test_library_in_the_wheel_is_listed_with_version_digest_and_place(finish, unpacked):
    one, cython = finish.bill(unpacked, WHEEL)["components"]
    assert (one["name"], one["version"], one["purl"]) == ("nghttp2", "1.52.0-1+deb12u3", URL)
    assert one["cpe"] == "cpe:2.3:a:nghttp2:nghttp2:1.52.0:*:*:*:*:*:*:*"
    assert one["hashes"][0]["content"] == hashlib.sha256(b"theirs").hexdigest()
    [occurrence] = one["evidence"]["occurrences"]
    assert occurrence == {"location": "ksrv/_native/libnghttp2.so.14"}
    assert cython["purl"].startswith("pkg:pypi/cython@")


def test_library_of_unknown_licence_ends_the_build(finish, unpacked):
    (unpacked / "ksrv.libs").mkdir()
    (unpacked / "ksrv.libs/libfoo-0123abcd.so.1").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"libfoo-0123abcd\.so\.1 is in the wheel"):
        finish.bill(unpacked, WHEEL)


def test_bill_is_the_same_again(finish, unpacked):
    assert finish.bill(unpacked, WHEEL) == finish.bill(unpacked, WHEEL)


@pytest.mark.parametrize("second", [{"a": b"1", "b": b"3"}, {"a": b"1"}, {"a": b"1", "c": b"2"}])
def test_second_build_that_differs_is_an_error(tool, tmp_path, second):
    for folder, files in {"first": {"a": b"1", "b": b"2"}, "second": second}.items():
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    compare = tool("dist").compare
    with pytest.raises(SystemExit, match=r"the second build has made another [bc]"):
        compare(tmp_path / "first", tmp_path / "second")
    compare(tmp_path / "first", tmp_path / "first")


def test_commit_is_built_without_changes_and_untracked_files(tool, tmp_path, monkeypatch):
    module = tool("dist")
    for command in (
        ["init", "-q"], ["config", "user.email", "a@example.com"], ["config", "user.name", "a"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "file").write_text("committed")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "x"], cwd=tmp_path, check=True)
    (tmp_path / "file").write_text("changed")
    (tmp_path / "other").write_text("untracked")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    commit = module.Commit()
    commit.export(tmp_path / "exported")
    assert {p.name: p.read_text() for p in (tmp_path / "exported").iterdir()} == {
        "file": "committed"
    }
    environment = commit.environment()
    assert environment["SOURCE_DATE_EPOCH"] == commit.epoch and "CXXFLAGS" not in environment
