"""The example of profiles on demand: what its client prints of a server with --debug, and of one without."""

import subprocess
import sys

import pytest

from ksrv.testing import Server
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "profiling"


@pytest.mark.parametrize("debug", [True, False])
def test_the_example_shows_where_the_time_goes(debug):
    with Server(FOLDER, debug=debug) as server:
        command = [sys.executable, str(FOLDER / "ask.py"), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    timing, _, profiles = done.stdout.partition("\npython:\n")
    python, _, torch = profiles.partition("\ntorch:\n")
    assert timing.startswith("Server-Timing: ") and "inference;dur=" in timing
    for text, shows in ((python, "(vector)"), (torch, "aten::")):
        assert (shows if debug else "without --debug") in text
