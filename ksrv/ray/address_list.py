"""The addresses of an application's replicas: the deployment that knows them, and the call to it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ksrv.ray.installation import ray_serve

DEPLOYMENT = "ksrv-addresses"
DEFAULT_APPLICATION = "default"
RENEW_SECONDS = 1.0
FORGET_SECONDS = 3.0
"""A replica is off the list when it has not renewed its address for so long."""
WITHDRAWN_SECONDS = 60.0
"""How long a withdrawn address is refused: longer than a late renewal can be on its way."""


@dataclass(frozen=True)
class Address:
    """The addresses of one replica.

    Attributes:
        replica: Ray's id of the replica.
        node: Ray's id of its node.
        http: HTTP address as HOST:PORT, "" if HTTP is off.
        grpc: gRPC address as HOST:PORT, "" if gRPC is off.
        tls: Whether both want TLS.
    """

    replica: str
    node: str
    http: str
    grpc: str
    tls: bool = False


class AddressList:
    """The deployment that keeps the addresses; Ray Serve runs one of it for each application.

    It keeps nothing that cannot be lost: replicas renew their addresses every second, so a list that
    Ray starts again knows them at once.
    """

    def __init__(self) -> None:
        self._renewed: dict[str, tuple[float, Address]] = {}
        self._withdrawn: dict[str, float] = {}

    def renew(self, address: Address) -> None:
        """Put an address onto the list, or keep it there; an address that was withdrawn stays away."""
        if address.replica not in self._withdrawn:
            self._renewed[address.replica] = (time.monotonic(), address)

    def withdraw(self, replica: str) -> None:
        """Take a replica's address off the list for good, before the replica stops.

        Args:
            replica: Ray's id of it, which no other replica ever gets.
        """
        now = time.monotonic()
        self._withdrawn = {
            gone: when for gone, when in self._withdrawn.items() if when >= now - WITHDRAWN_SECONDS
        }
        self._withdrawn[replica] = now
        self._renewed.pop(replica, None)

    def current(self) -> list[Address]:
        """Return the addresses of the replicas that serve, by their ids."""
        oldest = time.monotonic() - FORGET_SECONDS
        self._renewed = {
            replica: entry for replica, entry in self._renewed.items() if entry[0] >= oldest
        }
        return [address for _, (_, address) in sorted(self._renewed.items())]


def addresses(app: str = DEFAULT_APPLICATION, *, timeout: float = 30.0) -> list[Address]:
    """Return where the replicas of an application listen now.

    The list is for clients and load balancers that call the replicas directly. It changes when replicas
    come and go: ask again every few seconds, and after a refused connection.

    Args:
        app: The name under which Ray Serve runs the application.
        timeout: Seconds that the answer may take; Ray starts a lost list anew meanwhile.

    Raises:
        TimeoutError: There was no answer.
        ray.serve.exceptions.RayServeException: Ray Serve runs no such application of ksrv's.
        ModuleNotFoundError: Ray is not installed (extra `ray`).
    """
    handle = ray_serve().get_deployment_handle(DEPLOYMENT, app_name=app)
    found: list[Address] = handle.current.remote().result(timeout_s=timeout)
    return found


def deployment(actor: Mapping[str, Any]) -> Any:
    """Return the deployment of the list.

    Args:
        actor: Ray's options for its actor, beside those chosen here.
    """
    serve = ray_serve()
    # The head node's death ends the cluster, so the list is nowhere safer; it needs no CPU to speak of.
    place = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
    return serve.deployment(
        AddressList,
        name=DEPLOYMENT,
        num_replicas=1,
        max_ongoing_requests=1000,
        max_surge_percent=100,  # a redeploy replaces the list, and it is asked meanwhile
        ray_actor_options={**place, **actor},
        logging_config={"enable_access_log": False},  # each replica calls every second
    )
