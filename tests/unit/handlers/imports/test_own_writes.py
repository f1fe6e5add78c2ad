"""Files that a model's code writes are recognised before they change, without a cost per request."""

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from ksrv.engine.engine import Engine
from ksrv.handlers.imports.own_writes import is_own_write, watch
from ksrv.repository.layout import Repository
from ksrv.request import InferRequest, Tensor
from tests.support.models import ECHO, VECTOR, write_model


def write(path):
    path.write_text("more")


def write_with_another_name(path):
    (path.parent / "new").write_text("more")
    os.replace(path.parent / "new", path)


def append_by_a_relative_name(path):
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with open(os.fsencode(path.name), "ab") as file:
            file.write(b"more")
    finally:
        os.chdir(before)


def remove(path):
    path.unlink()


def copy_over(path):
    shutil.copy(__file__, path)


def write_a_database(path):
    path.unlink()
    sqlite3.connect(path).close()


def touch(path):
    os.utime(path)


def write_through_a_link_to_the_folder(path):
    link = path.parent.parent / f"link to {path.parent.name}"
    link.symlink_to(path.parent)
    (link / path.name).write_text("more")
    link.unlink()


CHANGES = [
    touch,
    write_through_a_link_to_the_folder,
    write,
    write_with_another_name,
    append_by_a_relative_name,
    remove,
    copy_over,
    write_a_database,
]


@pytest.mark.parametrize("change", CHANGES)
def test_writes_of_python_code_are_recognised(tmp_path, change):
    path, other, notes = tmp_path / "one", tmp_path / "two", str(tmp_path / "notes")
    for one in (path, other):
        one.write_text("before")
    watch([str(path), str(other)], notes)
    path.read_text()
    assert not is_own_write(str(path), notes)
    change(path)
    assert is_own_write(str(path), notes)
    assert not is_own_write(str(other), notes)
    assert len(os.listdir(notes)) == 1  # for the other processes


def test_files_next_to_a_database_count_as_its_writes(tmp_path):
    path = tmp_path / "cache.db-wal"
    path.write_text("before")
    watch([str(path)], "")
    sqlite3.connect(tmp_path / "cache.db").close()
    assert is_own_write(str(path), "")


def test_a_request_raises_no_audit_event(tmp_path):
    events = []
    counting = False

    def count(event, arguments):
        if counting:
            events.append(event)

    write_model(tmp_path, "m", ECHO, VECTOR)
    engine = Engine(Repository([tmp_path]))
    engine.start()
    try:
        tensor = Tensor("x", "FP32", (1, 4), np.ones((1, 4), np.float32))
        engine.submit(InferRequest(model_name="m", id="", inputs=[tensor])).wait()
        sys.addaudithook(count)
        counting = True
        engine.submit(InferRequest(model_name="m", id="", inputs=[tensor])).wait()
        counting = False
    finally:
        counting = False
        engine.close(5)
    assert "builtins.id" not in events
