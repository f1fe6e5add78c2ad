"""A cluster of Ray's with two nodes on this machine."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.wait_until import wait_until

NODE: dict[str, Any] = {
    "num_cpus": 4,
    "object_store_memory": 100 << 20,
}
PORT = 18472
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


class TwoNodes:
    """A head node, another node, and Ray Serve on them."""

    def __init__(self) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        os.environ.update(RAY_raylet_start_wait_time_s="180")  # of a busy machine
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
        )
        self.node = self._cluster.add_node(**NODE)
        ray.init(address=self._cluster.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})

    @property
    def url(self) -> str:
        """Ray's own HTTP ingress."""
        return f"http://127.0.0.1:{PORT}"

    @property
    def address(self) -> str:
        """Where the cluster is joined."""
        return str(self._cluster.address)

    def add_node(self) -> None:
        """Join another second node, where the last one was killed."""
        self.node = self._cluster.add_node(**NODE)

    def kill_node(self) -> float:
        """End every process of the second node at once, as a power cut does; return when all were gone."""
        raylet = self.node.all_processes["raylet"][0].process.pid
        pids = [raylet, *descendants(raylet)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, pids)))
        when = time.monotonic()
        self._cluster.remove_node(self.node, allow_graceful=False)
        return when

    def close(self) -> None:
        """End every process of the cluster's."""
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> list[int]:
    """Return the processes below one, their own children behind each."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def listed(count: int) -> list[Any]:
    """Wait until so many replicas are listed, and return their addresses."""
    import ksrv.ray

    wait_until(lambda: len(ksrv.ray.addresses()) == count, 120)
    return ksrv.ray.addresses()


def listening_on(port: int) -> list[int]:
    """Return the processes below this one that listen on a port of IPv4, the eldest first."""
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
