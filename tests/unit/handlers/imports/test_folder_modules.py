"""Modules of a model's folder while other threads import modules."""

import sys
from types import ModuleType

from ksrv.handlers.imports import folder_modules
from ksrv.handlers.imports.folder_modules import ModelImporter


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
