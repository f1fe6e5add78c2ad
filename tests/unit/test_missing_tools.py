"""Which errors of a test mean that a tool is missing. All other errors fail the test."""

import shutil

import pytest

from tests.support import missing_tools


def no_program(name: str) -> FileNotFoundError:
    return FileNotFoundError(2, "No such file or directory", name)


def test_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with (
        pytest.raises(pytest.skip.Exception, match="curl is not installed"),
        missing_tools.skipped_without_tools(),
    ):
        raise no_program("curl")


@pytest.mark.parametrize("name", ["ksrv", "/srv/models/model.yaml"])
def test_other_missing_files_fail_the_test(monkeypatch, name):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError), missing_tools.skipped_without_tools():
        raise no_program(name)


def test_program_that_is_installed_fails_the_test(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(FileNotFoundError), missing_tools.skipped_without_tools():
        raise no_program("curl")


@pytest.mark.parametrize(("version", "tool"), [(None, "libnghttp2"), ("1.52.0", None)])
def test_server_without_libnghttp2_is_skipped_only_if_it_is_missing(monkeypatch, version, tool):
    monkeypatch.setattr(missing_tools, "library_version", lambda: version)
    error = RuntimeError(f"the native server cannot serve: {missing_tools.NO_HTTP2} (Debian: ...)")
    assert missing_tools.missing_tool(error) == tool
