"""ksrv under Ray Serve: Ray places, scales and replaces replicas; ksrv serves the models in each of them.

    from ray import serve
    import ksrv.ray

    serve.run(ksrv.ray.app("/models", num_replicas=2))
    for address in ksrv.ray.addresses():
        print(address.http, address.grpc)

A replica is an actor of Ray Serve that keeps a whole ksrv server as its child process, on separate ports: the native
HTTP and gRPC servers, the engine and its batching are the same as under `ksrv serve`. The server is a process and not a
thread of the actor, because gunicorn's master needs signals and forks, and because a handler that crashes its process
must not end the actor too.

Clients, or a load balancer, connect to the replicas' ports directly, so Ray adds no cost to a request. `addresses`
lists the ports, and so does `GET /-/addresses` on Ray's HTTP ingress, which serves no models.

A second, small deployment of the same application keeps the addresses (`address_list.py`). Each replica renews its
address every second and withdraws it before it drains. An address that is not renewed for three seconds is forgotten,
such as an address on a killed node. Until then a client may get a refused connection, and should try the next address.

Ray Serve does the placement, health checks, rollouts and scaling. For scaling it asks each replica for the length of
its queues (`ksrv.ray.autoscaling`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksrv.ray.address_list import Address, addresses
    from ksrv.ray.application import app, build

_MODULES = {
    "Address": "address_list",
    "addresses": "address_list",
    "app": "application",
    "build": "application",
}

__all__ = ["Address", "addresses", "app", "build"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ksrv.ray' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ksrv.ray.{_MODULES[name]}"), name)
