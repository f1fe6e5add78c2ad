"""`ksrv serve` as a child process."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ksrv.python_path import with_ksrv
from ksrv.server.launch.memory_file import memory_file, path_of
from ksrv.server.launch.parent_death import ending_with_parent
from ksrv.server.launch.status_lines import StatusReader


@dataclass(frozen=True)
class ChildServer:
    """A server that was started.

    Attributes:
        process: The master process, the leader of a session of its own.
        status: What it tells of itself.
    """

    process: "subprocess.Popen[Any]"
    status: StatusReader


def start(
    command_of: Callable[[str], list[str]],
    settings: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    ends_with_thread: bool,
    **popen: Any,
) -> ChildServer:
    """Start a server.

    The settings reach it as a file in memory. `KSRV_*` variables of this process do not, because they
    would win over the file.

    Args:
        command_of: Returns the command for the path of the settings file.
        settings: The settings of `ksrv serve`, nested ones as mappings.
        environment: Variables added to those of this process.
        ends_with_thread: Whether the kernel ends the server with the thread that calls this.
        popen: Where the output goes and how it is read; see `subprocess.Popen`.

    Raises:
        OSError: The process cannot be started.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("KSRV_")}
    status = StatusReader()
    file = memory_file(json.dumps({**settings, "status_fd": status.descriptor}).encode())
    try:
        command = command_of(path_of(file))
        variables = {**own, "PYTHONUNBUFFERED": "1", **environment}
        variables["PYTHONPATH"] = with_ksrv(variables.get("PYTHONPATH", ""))
        process = subprocess.Popen(
            ending_with_parent(command) if ends_with_thread else command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=variables,
            pass_fds=[file, status.descriptor],
            start_new_session=True,
            **popen,
        )
    except BaseException:
        status.close()
        raise
    finally:
        os.close(file)
        status.inherited()
    return ChildServer(process, status)
