"""Timed waits use the monotonic clock, whatever version of glibc the modules are built for."""

from pathlib import Path

from ksrv import _native


def test_native_core_does_not_need_newer_wait_calls():
    """Without pthread_cond_clockwait, libstdc++ waits on the wall clock."""
    modules = list(Path(_native.__path__[0]).rglob("*.so"))
    assert any(b"pthread_cond_timedwait" in module.read_bytes() for module in modules)
    for module in modules:
        assert b"pthread_cond_clockwait" not in module.read_bytes(), module.name
