"""A model store that other users can modify is reported, once."""

import logging
import os

import pytest

from ksrv.repository.layout import Repository
from ksrv.repository.permissions import insecure_paths


@pytest.fixture
def store(tmp_path):
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"")
    return tmp_path


def test_store_of_the_same_user_is_trusted(store):
    assert list(insecure_paths(store / "m")) == []


@pytest.mark.parametrize("name", ["m", "m/1", "m/1/model.onnx"])
def test_world_writable_store_is_not_trusted(store, name):
    (store / name).chmod(0o777)
    [doubt] = insecure_paths(store / "m")
    assert doubt == f"{store / name} can be written by every user of this machine"


def test_store_of_another_user_is_not_trusted(store, monkeypatch):
    owner = os.stat(store).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    found = list(insecure_paths(store / "m"))
    assert bool(found) == (owner != 0)


def test_a_scan_warns_once(store, caplog):
    (store / "m/1").chmod(0o777)
    repository = Repository([store])
    with caplog.at_level(logging.WARNING, "ksrv.repository"):
        repository.scan()
        repository.scan()
    assert len(caplog.records) == 1
    assert "model m: " in caplog.text
    assert "can be written by every user" in caplog.text
