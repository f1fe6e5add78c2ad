"""A cluster of Ray's with two nodes on this machine."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.wait_until import wait_until

# Patience with a busy machine, on which workers of Ray's own niceness, 15, would get next to nothing.
# Ray reads these as it is imported.
os.environ.update(
    RAY_agent_register_timeout_ms="180000",
    RAY_raylet_start_wait_time_s="180",
    RAY_worker_niceness="0",
)

NODE: dict[str, Any] = {
    "num_cpus": 4,
    "object_store_memory": 100 << 20,
}
PORT = 18472
START_ATTEMPTS = 4
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


class TwoNodes:
    """A head node, another node, and Ray Serve on them."""

    def __init__(self) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        head = {**NODE, "include_dashboard": False}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.add_node()
        ray.init(address=self._cluster.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})

    @property
    def url(self) -> str:
        """Ray's own HTTP ingress."""
        return f"http://127.0.0.1:{PORT}"

    @property
    def address(self) -> str:
        """The address to join the cluster."""
        return str(self._cluster.address)

    def add_node(self) -> None:
        """Join a second node, if none has joined or the last node was killed."""
        self.node = _started(lambda: self._cluster.add_node(**NODE))

    @property
    def raylet(self) -> int:
        """The process id of the second node's raylet, the ancestor of all processes of the node."""
        return int(self.node.all_processes["raylet"][0].process.pid)

    @contextlib.contextmanager
    def stopped_node(self) -> Iterator[None]:
        """Stop every process of the second node at once, and kill them at the end, as a power cut does."""
        pids = [self.raylet, *descendants(self.raylet)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(_lives, pids)))
            self._cluster.remove_node(self.node, allow_graceful=False)

    def kill_raylet(self) -> None:
        """Kill the second node's raylet alone, and wait until the processes below it have ended by that."""
        below = descendants(self.raylet)
        raylet = self.node.all_processes["raylet"][0].process
        raylet.kill()
        raylet.wait()  # until then its process id exists, and Ray's workers take the raylet for alive
        wait_until(
            lambda: not any(map(_lives, below)),
            120,
            lambda: "\n".join(_command(pid) for pid in below if _lives(pid)),
        )
        self._cluster.remove_node(self.node, allow_graceful=False)

    def close(self) -> None:
        """End every process of the cluster's."""
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()


def _started(start: Callable[[], Any]) -> Any:
    """Return a started node, after another attempt if its raylet has ended as it started.

    A raylet gives itself up when its agents, which are processes of Python's, have not told their
    ports in time, as on a busy machine.
    """
    for _ in range(START_ATTEMPTS - 1):
        with contextlib.suppress(Exception):
            return start()
    return start()


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _command(pid: int) -> str:
    """Return a process's command, for a failure that asks which process lives."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def actor(name: str) -> int:
    """Return the process of the only actor of the cluster whose name, as Ray shows it, begins so."""
    [found] = [
        pid
        for pid in descendants(os.getpid())
        if Path(f"/proc/{pid}/cmdline").read_text().startswith(f"ray::{name}")
    ]
    return found


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, each before its children."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def deploy(config: dict[str, Any]) -> None:
    """Run the applications of a Serve config file, as `serve deploy` does, until they run.

    When Ray's controller starts anew it applies the last such file again, so a test that kills it has
    to deploy this way.
    """
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    deployed = ServeDeploySchema.model_validate(config)
    _get_global_client().deploy_apps(deployed)
    names = [application.name for application in deployed.applications]

    def run() -> bool:
        found = serve.status().applications
        return all(name in found and found[name].status == "RUNNING" for name in names)

    wait_until(run, 180, lambda: str(serve.status()))


def listed(count: int) -> list[Any]:
    """Wait until so many replicas are listed, and return their addresses."""
    import ksrv.ray

    found: list[Any] = []

    def so_many() -> bool:
        found[:] = ksrv.ray.addresses()
        return len(found) == count

    wait_until(so_many, 120, lambda: str(found))
    return found


def listening_on(port: int) -> list[int]:
    """Return the descendants of this process that listen on a port of IPv4, the eldest first."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
    }
    return [pid for pid in descendants(os.getpid()) if sockets & set(_open_files(pid))]


def _open_files(pid: int) -> list[str]:
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(file.readlink()))
        except OSError:  # closed meanwhile
            continue
    return found
