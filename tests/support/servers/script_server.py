"""A server that a user's script starts by `ksrv.serve(...)`."""

import sys
from pathlib import Path
from typing import Any

from ksrv.testing import Server


class ScriptServer(Server):
    """Runs a Python script that serves the script's handler, while the context is open."""

    def __init__(self, script: Path, **options: Any) -> None:
        super().__init__([], **{"start_timeout": 240.0} | options)
        self._script = script

    def command(self, settings_file: Path) -> list[str]:
        """Return the command that runs the script; the settings reach it as a user's would."""
        self._environment["KSRV_CONFIG"] = str(settings_file)
        return [sys.executable, str(self._script)]
