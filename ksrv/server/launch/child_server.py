"""`ksrv serve` as a child process."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ksrv.installation import with_ksrv
from ksrv.server.launch.memory_file import memory_file, path_of
from ksrv.server.launch.parent_death import ending_with_parent
from ksrv.server.launch.status_lines import StatusReader


@dataclass(frozen=True)
class ChildServer:
    """A server that was started.

    Attributes:
        process: The master process, the leader of a new session.
        status: The messages of the server about itself.
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
        settings: The settings of `ksrv serve`, nested settings as mappings.
        environment: Variables added to the variables of this process.
        ends_with_thread: Whether the kernel ends the server with the thread that calls this.
        popen: How the output is redirected and read; see `subprocess.Popen`.

    Raises:
        OSError: The process cannot be started.
    """
    status = StatusReader()
    file = memory_file(json.dumps({**settings, "status_fd": status.descriptor}).encode())
    try:
        command = command_of(path_of(file))
        variables = variables_with(environment)
        descriptors = [file, status.descriptor]
        process = spawn(command, variables, descriptors, ends_with_thread=ends_with_thread, **popen)
    except BaseException:
        status.close()
        raise
    finally:
        os.close(file)
        status.inherited()
    return ChildServer(process, status)


def variables_with(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: this process's without `KSRV_*`, and what is added."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KSRV_")}
    variables = {**own, "PYTHONUNBUFFERED": "1", **added}
    variables["PYTHONPATH"] = with_ksrv(variables.get("PYTHONPATH", ""))
    return variables


def spawn(
    command: list[str],
    variables: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    ends_with_thread: bool,
    **popen: Any,
) -> "subprocess.Popen[Any]":
    """Start the process of a server.

    Args:
        command: The command.
        variables: Its environment.
        descriptors: The descriptors that it inherits.
        ends_with_thread: See `start`.
        popen: See `start`.
    """
    return subprocess.Popen(
        ending_with_parent(command) if ends_with_thread else command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        env=variables,
        pass_fds=descriptors,
        start_new_session=True,
        **popen,
    )
