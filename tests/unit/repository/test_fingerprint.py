"""The files that identify a version."""

import os

import pytest

from ksrv.model.config import ModelSource
from ksrv.repository import fingerprint as fingerprints
from ksrv.repository.fingerprint import fingerprint


@pytest.fixture
def model(tmp_path):
    for name in ("1/handler.py", "2/handler.py", "shared/deep/weights.bin", "labels.txt"):
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_text(name)
    return tmp_path / "m"


def names(root, version="1"):
    found = fingerprint(ModelSource(name="m", version=version, folder=root / version, root=root))
    return sorted(os.path.relpath(path, root) for path, _, _ in found.files)


def test_version_has_its_files_and_the_shared_files(model):
    assert names(model) == ["1/handler.py", "labels.txt", "shared/deep/weights.bin"]
    assert names(model, "2") == ["2/handler.py", "labels.txt", "shared/deep/weights.bin"]


def test_hidden_files_and_caches_do_not_count(model):
    for name in (".git/x", "1/__pycache__/x", "1/.x", "shared/.y/x"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).touch()
    assert names(model) == ["1/handler.py", "labels.txt", "shared/deep/weights.bin"]


def test_folders_behind_links_count_once(model, tmp_path):
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "net.onnx").touch()
    (model / "1" / "net").symlink_to(tmp_path / "release")
    (tmp_path / "release" / "again").symlink_to(model / "1")
    assert names(model) == [
        "1/handler.py",
        "1/net/net.onnx",
        "labels.txt",
        "shared/deep/weights.bin",
    ]
    before = fingerprint(ModelSource(name="m", version="1", folder=model / "1", root=model))
    (tmp_path / "release" / "net.onnx").write_text("new")
    assert fingerprint(ModelSource(name="m", version="1", folder=model / "1", root=model)) != before


def test_a_link_to_a_data_set_is_not_followed_to_its_end(model, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "MOST_FILES", 5)
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / f"{number:02}").touch()
    (model / "1" / "data").symlink_to(tmp_path / "data")
    assert names(model)[:5] == ["1/data/00", "1/data/01", "1/data/02", "1/data/03", "1/handler.py"]


def test_links_that_lead_nowhere_are_no_files(model):
    (model / "1" / "gone").symlink_to(model / "nowhere")
    os.mkfifo(model / "1" / "pipe")
    assert names(model) == ["1/handler.py", "labels.txt", "shared/deep/weights.bin"]
