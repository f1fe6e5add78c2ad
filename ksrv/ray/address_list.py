"""The list of the addresses at which an application's replicas listen.

`AddressList` runs as a Ray Serve deployment. Replicas renew their addresses there (`replica.py`); `addresses` reads the
list.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ksrv.ray.installation import ray_serve

DEPLOYMENT = "ksrv-addresses"
DEFAULT_APPLICATION = "default"
RENEW_SECONDS = 1.0
FORGET_SECONDS = 3.0
"""After this time without a renewal, a replica is not on the list any more."""
WITHDRAWN_SECONDS = 60.0
"""How long renewals of a withdrawn replica are ignored. It is longer than a late renewal can take to arrive."""


@dataclass(frozen=True)
class Address:
    """The addresses of one replica.

    Attributes:
        replica: Ray's id of the replica.
        node: Ray's id of its node.
        http: HTTP address as HOST:PORT, "" if HTTP is off.
        grpc: gRPC address as HOST:PORT, "" if gRPC is off.
        tls: Whether both addresses need TLS.
    """

    replica: str
    node: str
    http: str
    grpc: str
    tls: bool = False


class AddressList:
    """Keeps the addresses. Ray Serve runs one replica of it for each application, as an actor.

    It may lose its state: replicas renew their addresses every second, so a list that Ray has restarted is complete
    after a second.
    """

    def __init__(self) -> None:
        # By the replica's id, times of `time.monotonic`.
        self._renewed: dict[str, tuple[float, Address]] = {}
        self._withdrawn: dict[str, float] = {}

    def renew(self, address: Address) -> None:
        """Put an address onto the list, or keep it there. Does nothing if the replica was withdrawn."""
        if address.replica not in self._withdrawn:
            self._renewed[address.replica] = (time.monotonic(), address)

    def withdraw(self, replica: str) -> None:
        """Take a replica's address off the list for good, before the replica stops.

        Args:
            replica: Ray's id of the replica, which no other replica ever gets.
        """
        now = time.monotonic()
        self._withdrawn = {
            gone: when for gone, when in self._withdrawn.items() if when >= now - WITHDRAWN_SECONDS
        }
        self._withdrawn[replica] = now
        self._renewed.pop(replica, None)

    def current(self) -> list[Address]:
        """Return the addresses of the replicas that serve, sorted by the ids of the replicas."""
        oldest = time.monotonic() - FORGET_SECONDS
        self._renewed = {
            replica: entry for replica, entry in self._renewed.items() if entry[0] >= oldest
        }
        return [address for _, (_, address) in sorted(self._renewed.items())]


def addresses(app: str = DEFAULT_APPLICATION, *, timeout: float = 30.0) -> list[Address]:
    """Return the addresses at which the replicas of an application listen now.

    The list is for clients and load balancers that call the replicas directly. It changes when replicas
    come and go: ask again every few seconds, and after a refused connection.

    Args:
        app: The name under which Ray Serve runs the application.
        timeout: Seconds that the answer may take. Ray may restart the list meanwhile.

    Raises:
        TimeoutError: The list did not answer in time.
        ray.serve.exceptions.RayServeException: Ray Serve runs no application of ksrv with this name.
        ModuleNotFoundError: Ray is not installed (extra `ray`).
    """
    handle = ray_serve().get_deployment_handle(DEPLOYMENT, app_name=app)
    found: list[Address] = handle.current.remote().result(timeout_s=timeout)
    return found


def deployment(actor: Mapping[str, Any]) -> Any:
    """Return the deployment of the list.

    Args:
        actor: Further options of Ray for the actor.
    """
    serve = ray_serve()
    # On the head node: the cluster ends anyway if that node dies. The list needs hardly any CPU.
    placement = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
    return serve.deployment(
        AddressList,
        name=DEPLOYMENT,
        num_replicas=1,
        max_ongoing_requests=1000,
        max_surge_percent=100,  # in a redeploy the new list starts before the old list ends
        ray_actor_options={**placement, **actor},
        logging_config={"enable_access_log": False},  # each replica calls every second
    )
