"""Which files are unchanged since a model was loaded, and to which modules its stored sources belong."""

import os
import shutil
import sysconfig

import pytest

from ksrv.errors import HandlerFailed
from ksrv.handlers.imports import loaded_files
from ksrv.handlers.imports.loaded_files import HeldSources, changed_file
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.repository.fingerprint import HASHED_FILE_BYTES, read_files


@pytest.fixture
def source(tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(HASHED_FILE_BYTES + 1))
    made = ModelSource(
        name="m",
        version="",
        folder=tmp_path,
        root=tmp_path,
        config=ModelConfig(handler="handler.py"),
    )
    return ModelSource(**{**_fields(made), "loaded": read_files(made)})


def _fields(source):
    return {name: getattr(source, name) for name in source.__struct_fields__}


def test_a_copy_of_the_same_file_is_no_change(source, tmp_path):
    """Inodes are not compared, because some file systems change them."""
    weights, copy = tmp_path / "weights.bin", tmp_path.parent / "copy"
    shutil.copy2(weights, copy)
    os.replace(copy, weights)
    assert changed_file(source) == ""


def test_unavailable_file_system_is_no_change(source, monkeypatch):
    def gone(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(loaded_files.os, "stat", gone)
    with pytest.raises(HandlerFailed, match=r"weights.bin cannot be compared .*Stale file handle"):
        changed_file(source)


def test_compiled_module_precedes_its_source(tmp_path):
    (tmp_path / "net.py").write_text("")
    held = HeldSources({str(tmp_path / "net.py"): b""})
    assert held.find("net", [str(tmp_path)]) is not None
    (tmp_path / f"net{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"")
    assert held.find("net", [str(tmp_path)]) is None
