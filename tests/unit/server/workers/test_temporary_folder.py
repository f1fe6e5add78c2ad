"""A server without a folder for temporary files reports the remedy."""

import tempfile

import pytest

from ksrv.server.settings import ServerSettings, SettingsError
from ksrv.server.workers.gunicorn_hooks import Master


def test_no_folder_for_temporary_files_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(SettingsError, match=r"no folder for temporary files.*TMPDIR"):
        Master(ServerSettings(models=(str(tmp_path),)))
