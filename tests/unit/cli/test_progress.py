"""The progress line."""

import sys

from ksrv.cli.progress import CLEAR_LINE, Progress


def test_progress_is_shown_on_a_terminal_and_cleared(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress() as progress:
        progress.show("loading " + "x" * 200)
    written = capsys.readouterr().err
    assert written.startswith(CLEAR_LINE) and written.endswith(CLEAR_LINE)
    assert "loading xxx" in written
    assert len(written.removeprefix(CLEAR_LINE).removesuffix(CLEAR_LINE)) <= 79
