"""The first lines that `ksrv serve` prints."""

import pytest

from ksrv.testing import Server


@pytest.mark.parametrize(("level", "said"), [("info", False), ("debug", True)])
def test_the_address_comes_first_and_gunicorns_lines_are_for_debugging(repository, level, said):
    with Server(repository / "double", log_level=level) as server:
        lines = [line for line in server.log.splitlines() if "gunicorn.error" not in line]
        assert lines[0].startswith("ksrv ")
        assert lines[1] == f"HTTP  {server.url}"
        for text in ("Starting gunicorn", "Listening at: ", "Using worker: "):
            assert (text in server.log) == said
        assert "Booting worker" in server.log
