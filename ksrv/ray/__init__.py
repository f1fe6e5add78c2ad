"""ksrv under Ray Serve: Ray places, scales and replaces replicas; ksrv serves the models in each of them.

    from ray import serve
    import ksrv.ray

    serve.run(ksrv.ray.app("/models", num_replicas=2))
    for address in ksrv.ray.addresses():
        print(address.http, address.grpc)

A replica is an actor of Ray Serve that keeps a whole ksrv server as its child process, on ports of its
own: the native HTTP and gRPC servers, the engine and its batching are those of `ksrv serve`, untouched by
Ray. A server of its own process and no thread of the actor's, because gunicorn's master needs signals and
forks, and because a handler that takes its process down must not take the actor along.

A request can come in two ways:

- **Direct ingress.** Clients, or a load balancer, connect to the replicas' own ports. No Python of Ray's
  runs for a request, so it costs what it costs without Ray. `addresses` lists the ports.
- **Ray's ingress.** The deployment is the application's ingress, so Ray's HTTP and gRPC proxies, or its
  HAProxy (`RAY_SERVE_ENABLE_HA_PROXY=1`), choose a replica, which forwards the request to its child.
  Convenient, behind one address, and many times dearer.

The addresses are kept by a small deployment of the same application. Each replica renews its address every
second and withdraws it before it drains, and an address that is not renewed is forgotten: a killed node is
gone from the list after three seconds. A client meets a refused connection until then, and takes the next
address. Ray's own list of ports (its "direct ingress") would serve Ray's HTTP server there, and cannot be told
of another one's.

ksrv writes no scheduler: placement, health checks, rollouts and the number of replicas are Ray Serve's, which
asks each replica for the length of its queues (`ksrv.ray.autoscaling`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksrv.ray.address_list import Address, addresses
    from ksrv.ray.application import app, build
    from ksrv.ray.grpc_forwarding import add_servicer

_HOMES = {
    "Address": "address_list",
    "add_servicer": "grpc_forwarding",
    "addresses": "address_list",
    "app": "application",
    "build": "application",
}

__all__ = ["Address", "add_servicer", "addresses", "app", "build"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ksrv.ray' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ksrv.ray.{_HOMES[name]}"), name)
