"""The import lock where an import hangs, where a process forks, and in tracebacks."""

import subprocess
import sys
import threading
import traceback

import pytest

from ksrv.handlers.imports import import_lock
from ksrv.handlers.imports.import_lock import ImportLock, locked_imports


def test_stuck_import_is_not_waited_for(caplog):
    lock = ImportLock()
    assert lock.acquire("hangs", 0.05)
    assert not lock.acquire("goes_on", 0.05)
    assert "the import of goes_on begins beside that of hangs, which takes long" in caplog.text
    lock.release()
    assert lock.acquire("goes_on", 0.05)


def test_running_import_is_waited_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(import_lock.time, "monotonic", lambda: clock[0])
    lock = ImportLock()
    assert lock.acquire("large", 0.01)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(lock.acquire("next", 0.01)))
    waiting.start()
    for _ in range(5):
        clock[0] += 0.008
        lock.note_progress(0.01)
        waiting.join(0.02)
    assert not taken
    lock.release()
    waiting.join(20)
    assert taken == [True]


def test_import_timeout_counts_cpu_time(
    monkeypatch,
):
    computed = iter(number * 0.001 for number in range(1000))
    looks = []

    def of_holder(clock):
        looks.append(clock)
        return next(computed)

    monkeypatch.setattr(import_lock.time, "thread_time", lambda: 0.0)
    lock = ImportLock()
    assert lock.acquire("large", 0.01)
    monkeypatch.setattr(import_lock.time, "clock_gettime", of_holder)
    next(computed)
    assert not lock.acquire("next", 0.01)
    assert len(looks) == 10  # each after 10 ms, in which the holder computed for 1 ms


def test_an_import_whose_thread_has_ended_is_not_waited_for():
    lock = ImportLock()
    importing = threading.Thread(target=lock.acquire, args=("large", 0.01))
    importing.start()
    importing.join()
    assert not lock.acquire("next", 0.01)


def test_forked_child_does_not_wait_for_the_parents_thread():
    program = """
import os, sys, threading
from ksrv.handlers.imports.import_lock import _lock, locked_imports

with locked_imports():
    pass
assert _lock.acquire("of_another_thread", 100)
child = os.fork()
with locked_imports():
    if child == 0:
        import wave
        os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


def test_tracebacks_hide_the_import_lock(tmp_path, monkeypatch):
    (tmp_path / "outer_part.py").write_text("import inner_part\n")
    (tmp_path / "inner_part.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with locked_imports(), pytest.raises(ZeroDivisionError) as caught:
        import outer_part  # noqa: F401
    shown = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert shown == [__file__, str(tmp_path / "outer_part.py"), str(tmp_path / "inner_part.py")]


def test_tool_that_wraps_imports_later_is_not_called_in_a_circle():
    program = """
import importlib._bootstrap as bootstrap
from ksrv.handlers.imports.import_lock import locked_imports

with locked_imports():
    pass
wrapped, names = bootstrap._find_and_load, []
def find(name, import_):
    names.append(name)
    return wrapped(name, import_)
bootstrap._find_and_load = find
with locked_imports():
    import wave
assert names.count("wave") == 1, names
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
