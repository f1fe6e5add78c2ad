"""Kept arenas of pymalloc: reuse, cap, trimming, and that what was in them is not disturbed."""

import os
import subprocess
import sys
import textwrap

import pytest


def run(script, allocator="pymalloc"):
    """Run a script in a process of its own: the setting holds for the whole process."""
    start = """
    import gc
    from ksrv._native.memory import pymalloc

    COUNT = 200_000

    def strings():
        return [b"%030d" % i for i in range(COUNT)]

    """
    code = textwrap.dedent(start) + textwrap.dedent(script)
    environment = {**os.environ, "PYTHONMALLOC": allocator}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)


def test_freed_arenas_are_used_again_and_trimmed():
    run("""
    assert pymalloc.statistics() == {"kept_bytes": 0, "reused": 0}
    assert pymalloc.trim() == 0
    pymalloc.keep_arenas()
    first = strings()
    assert first == strings()
    del first
    kept = pymalloc.statistics()["kept_bytes"]
    assert 4 << 20 < kept <= 32 << 20, kept
    again = strings()
    after = pymalloc.statistics()
    assert after["reused"] > 0 and after["kept_bytes"] < kept, after
    assert again[::999] == [b"%030d" % i for i in range(0, COUNT, 999)]
    left = after["kept_bytes"]
    assert pymalloc.trim() == left and pymalloc.statistics()["kept_bytes"] == 0
    assert again == strings()
    """)


def test_arenas_from_before_are_kept_too():
    run("""
    first = strings()
    pymalloc.keep_arenas()
    pymalloc.keep_arenas()  # once or twice is the same
    del first
    assert pymalloc.statistics()["kept_bytes"] > 4 << 20
    assert strings()[-1] == b"%030d" % (COUNT - 1)
    """)


@pytest.mark.parametrize("cap", [0, 1 << 20, 3 << 20])
def test_no_more_is_kept_than_the_cap(cap):
    run(f"""
    pymalloc.keep_arenas({cap})
    for _ in range(3):
        made = strings()
        del made
        assert pymalloc.statistics()["kept_bytes"] <= {cap}
    pymalloc.keep_arenas(64 << 20)  # a later call changes the cap alone
    made = strings()
    del made
    assert pymalloc.statistics()["kept_bytes"] > 4 << 20
    """)


def test_without_pymalloc_nothing_changes():
    run(
        """
    pymalloc.keep_arenas()
    made = strings()
    del made
    assert pymalloc.statistics()["kept_bytes"] == 0
    """,
        allocator="malloc",
    )


def test_a_cap_is_a_size():
    run("""
    for wrong, kind in ((-1, OverflowError), ("a", TypeError)):
        try:
            pymalloc.keep_arenas(wrong)
        except kind:
            continue
        raise AssertionError(wrong)
    """)
