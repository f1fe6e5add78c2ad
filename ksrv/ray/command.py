"""`ksrv serve --ray ADDRESS`: deploys an application on a Ray cluster, and deletes it when the command ends."""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ksrv.ray.address_list import Address, addresses
from ksrv.ray.application import app, given_settings
from ksrv.ray.installation import ray_serve
from ksrv.server.settings import SettingsError
from ksrv.server.settings_sources import Resolved

LOOK_SECONDS = 2.0
"""The pause between two reads of the address list."""
ANSWER_SECONDS = 10.0
"""How long an answer of the address list may take."""


def replica_options(replicas: str) -> dict[str, Any]:
    """Return the options of `app` for the setting `--ray-replicas`.

    Args:
        replicas: "N" for a fixed number, or "MIN:MAX" for autoscaling between these numbers.

    Raises:
        SettingsError: The text has another form.
    """
    least, colon, most = replicas.partition(":")
    try:
        numbers = [int(least), int(most)] if colon else [int(least)]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] < numbers[0]:
        raise SettingsError(
            f"--ray-replicas: expected a whole number from 1, or MIN:MAX such as 1:4, got '{replicas}'"
        )
    if not colon:
        return {"num_replicas": numbers[0]}
    return {"autoscaling": {"min_replicas": numbers[0], "max_replicas": numbers[1]}}


def serve(address: str, resolved: Resolved, *, name: str, replicas: str) -> None:
    """Run an application until SIGTERM or SIGINT, then delete it; its replicas drain first.

    Args:
        address: An address for `ray.init`: HOST:PORT, auto or ray://HOST:PORT; local starts a cluster.
        resolved: The settings of `ksrv serve`. The paths of the models must exist on every node.
        replicas: "N" or "MIN:MAX".

    Raises:
        SettingsError: A setting is unknown or cannot have its value, or Ray is not installed.
        RuntimeError: Ray Serve could not deploy the application, or it was deleted by another client.
        ConnectionError: No cluster answers at the address.
    """
    try:
        ray_deployments = ray_serve()
    except ModuleNotFoundError as error:
        raise SettingsError(str(error)) from error
    import ray

    models = [str(Path(path).absolute()) for path in resolved.settings.models]
    application = app(models, settings=given_settings(resolved), **replica_options(replicas))
    ray.init(address=address, namespace="ksrv")
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        ray_deployments.run(application, name=name)
        for now in _changes(name):
            _print(now)
    except _Stopped:
        print(f"the application {name} is deleted", flush=True)
    finally:
        ray_deployments.delete(name)
        ray.shutdown()


class _Stopped(BaseException):
    """SIGTERM or SIGINT arrived. Not an Exception, so that it also ends Ray's wait for an application to get ready."""


def _stop(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):  # the next signal ends the process at once
        signal.signal(each, signal.SIG_DFL)
    raise _Stopped


def _changes(name: str) -> Iterator[list[Address]]:
    """Yield the addresses whenever they have changed.

    Raises:
        RuntimeError: The application is no longer on the cluster.
    """
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    known: list[Address] = []
    while True:
        try:
            now = addresses(name, timeout=ANSWER_SECONDS)
        except (TimeoutError, RayError, RayServeException) as error:
            if name not in ray_serve().status().applications:
                raise RuntimeError(
                    f"the application '{name}' was deleted on the cluster; start the command again"
                ) from error
            now = known  # Ray is restarting the list
        if now != known:
            yield now
        known = now
        time.sleep(LOOK_SECONDS if known else 0.2)


def _print(replicas: Sequence[Address]) -> None:
    print(f"{time.strftime('%H:%M:%S')} replicas: {len(replicas)}")
    for replica in replicas:
        http, grpc = replica.http or "off", replica.grpc or "off"
        print(f"HTTP  {http}  gRPC  {grpc}  node {replica.node[:8]}", flush=True)
