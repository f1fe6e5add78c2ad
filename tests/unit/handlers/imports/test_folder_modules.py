"""Modules of a model's folder while other threads import modules."""

import re
import sys
import warnings
from types import ModuleType

import pytest

from ksrv.handlers.imports import folder_modules
from ksrv.handlers.imports.folder_modules import ModelImporter, error_with_location


def test_modules_are_forgotten_while_another_thread_imports(tmp_path, monkeypatch):
    (tmp_path / "handler.py").write_text("answer = 42\n")
    modules = ModelImporter("m", (tmp_path, tmp_path))
    loaded = modules.load(tmp_path / "handler.py")
    assert loaded.answer == 42 and loaded.__name__ in sys.modules
    within = folder_modules._within
    imported = []

    def importing(name, package):
        imported.append(f"of_another_thread_{len(imported)}")
        monkeypatch.setitem(sys.modules, imported[-1], ModuleType(imported[-1]))
        return within(name, package)

    monkeypatch.setattr(folder_modules, "_within", importing)
    modules.close()
    assert imported and loaded.__name__ not in sys.modules


def test_a_file_that_was_just_written_again_is_read_again(tmp_path):
    """Python's bytecode cache distinguishes versions of equal length only by the second."""
    for answer in (41, 42):
        (tmp_path / "handler.py").write_text(f"answer = {answer}\n")
        modules = ModelImporter("m", (tmp_path, tmp_path))
        assert modules.load(tmp_path / "handler.py").answer == answer
        modules.close()
    assert not (tmp_path / "__pycache__").exists()


def test_the_cause_of_a_torchscript_error_is_its_last_line(tmp_path):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        network = torch.jit.trace(torch.nn.Linear(3, 1), torch.ones(1, 3))
    with pytest.raises(RuntimeError) as failure:
        network(torch.ones(1, 4))
    text = error_with_location(tmp_path, failure.value)
    assert re.fullmatch("RuntimeError: mat1 and mat2 shapes cannot be multiplied .*", text)
