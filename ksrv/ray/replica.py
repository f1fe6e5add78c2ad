"""The class whose replicas Ray Serve runs: each replica starts a ksrv server, and reports its address, health and load.

Ray Serve calls the methods of `Replica` in its actor, the `async` methods on its event loop. A thread (`_keep_address`)
renews the address, and stops the server in the end.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ksrv.ray.address_list import RENEW_SECONDS, Address
from ksrv.ray.autoscaling import LOAD, LoadMeter
from ksrv.ray.server_process import ServerEnded, ServerProcess

log = logging.getLogger("ray.serve")


def reachable(address: str, host: str) -> str:
    """Return an address for other nodes: a wildcard host becomes the node's address.

    Args:
        address: HOST:PORT, or "".
        host: The node's IP address.
    """
    name, _, port = address.rpartition(":")
    if name in ("0.0.0.0", "[::]"):
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address


def prometheus_targets(replicas: Sequence[Address]) -> list[dict[str, Any]]:
    """Return the metrics pages of replicas in the form of Prometheus' HTTP service discovery.

    Args:
        replicas: The replicas' addresses; replicas without HTTP have no metrics page.
    """
    return [
        {
            "targets": [address.http],
            "labels": {
                "__scheme__": "https" if address.tls else "http",
                "replica": address.replica,
                "node": address.node,
            },
        }
        for address in replicas
        if address.http
    ]


def addresses_page(replicas: Sequence[Address]) -> dict[str, Any]:
    """Return the body of /-/addresses."""
    return {"replicas": [asdict(address) for address in replicas]}


LISTS = {"/-/addresses": addresses_page, "/-/prometheus-targets": prometheus_targets}
"""The GET routes of Ray's HTTP ingress, below the application's route prefix."""


class Replica:
    """A replica of the deployment. Ray Serve defines the names of the methods.

    Args:
        models: The paths for `ksrv serve`, on this node.
        settings: The settings of `ksrv serve`.
        stop_seconds: Longest stop of the server.
        start_timeout: Seconds in which the models must be ready.
        address_list: Ray Serve's handle to the list of addresses.
    """

    def __init__(
        self,
        models: Sequence[str],
        settings: Mapping[str, Any],
        stop_seconds: float,
        start_timeout: float,
        address_list: Any,
    ) -> None:
        import ray
        from ray import serve
        from ray.util import get_node_ip_address

        host = get_node_ip_address()
        listen = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._stop_seconds = stop_seconds
        self._address_list = address_list
        self._server = ServerProcess(models, {"http": listen, "grpc": listen, **settings})
        try:
            self._server.start(start_timeout)
        except ServerEnded as error:
            raise ServerEnded(f"on the node {host}: {error}") from error
        self._meter = LoadMeter()
        self._address = Address(
            serve.get_replica_context().replica_id.unique_id,
            ray.get_runtime_context().get_node_id(),
            reachable(self._server.http, host),
            reachable(self._server.grpc, host),
            tls=settings.get("tls_cert") is not None,
        )
        self._leaving = threading.Event()
        self._listed = False  # whether the first health check has put the address onto the list
        self._configured = False  # whether Ray Serve has passed the first user_config
        self._keeper = threading.Thread(target=self._keep_address, name="ksrv address", daemon=True)
        self._keeper.start()

    def _keep_address(self) -> None:
        """Renew the address until the replica leaves, then withdraw it and end the server, on a separate thread."""
        lost = False
        while not self._leaving.wait(RENEW_SECONDS):
            try:
                self._server.check()
                self._address_list.renew.remote(self._address).result(timeout_s=10)
                lost = False
            except Exception as error:  # noqa: BLE001
                if not lost:
                    log.warning(
                        "the address of this replica could not be renewed, so clients may miss it; it is tried again: %s",
                        error,
                    )
                lost = True
        try:
            self._address_list.withdraw.remote(self._address.replica).result(timeout_s=2)
        except Exception as error:  # noqa: BLE001
            log.warning(
                "the address of this replica could not be withdrawn; it expires by itself: %s",
                error,
            )
        self._server.stop(self._stop_seconds)

    async def __call__(self, request: Any) -> Any:
        """Answer a request to Ray's HTTP ingress: list the replicas, if the caller may read the server's metadata.

        Args:
            request: A `starlette.requests.Request`.
        """
        from starlette.responses import JSONResponse, Response

        route = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if request.method != "GET" or route not in LISTS:
            refusal = "Ray's ingress serves no models; call a replica's own address: GET /-/addresses lists them"
            return JSONResponse({"error": refusal}, 404)
        authorization = request.headers.get("authorization")
        client = request.client.host if request.client else "unknown"
        try:
            refused = await asyncio.to_thread(self._server.refusal, authorization, client)
        except OSError as error:
            reason = f"the replica's server does not answer: {error}; the replica's log says why"
            return JSONResponse({"error": reason}, 503, {"Retry-After": "1"})
        if refused is not None:
            status, body = refused
            return Response(body, status, media_type="application/json")
        return JSONResponse(LISTS[route](await self._address_list.current.remote()))

    async def check_health(self) -> None:
        """Return if the server lives. If this raises, Ray Serve replaces the replica.

        Ray Serve counts a replica as running after its first check. So the first check also puts the address onto the
        list, and `addresses()` returns it as soon as `serve.run` has returned.

        Raises:
            ServerEnded: The server's process has ended.
            OSError: The server does not answer.
        """
        await asyncio.to_thread(self._server.check)
        if not self._listed:
            await self._address_list.renew.remote(self._address)
            self._listed = True

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load that `ksrv.ray.autoscaling.policy` reads."""
        page = await asyncio.to_thread(self._server.get, "/metrics")
        return {LOAD: self._meter.load(page.decode())}

    async def reconfigure(self, user_config: Any) -> None:
        """Make the server read its models again, as on SIGHUP, when the deployment's user_config changes.

        Args:
            user_config: Any value. Ray Serve passes the first value when the replica starts; that reloads nothing.
        """
        if self._configured:
            self._server.reload()
        self._configured = True

    def __del__(self) -> None:
        """Have the thread withdraw the address and end the server, and wait until running requests are answered."""
        if hasattr(self, "_keeper"):
            self._leaving.set()
            self._keeper.join()
