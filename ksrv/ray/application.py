"""Makes the Ray Serve application that serves models: `ksrv.ray.app`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksrv.ray.address_list import deployment as address_list
from ksrv.ray.autoscaling import policy
from ksrv.ray.installation import ray_serve
from ksrv.ray.replica import Replica
from ksrv.server.settings import ServerSettings, SettingsError
from ksrv.server.settings_sources import Resolved, by_dotted_key, resolve

DEPLOYMENT = "ksrv"
STOP_SECONDS = 10.0
"""Longest stop of a replica, in addition to its server's drain delay and stop timeout."""
RAY_DRAIN_SECONDS = 35.0
"""Assumed longest wait of Ray before it stops a replica: 30 s with HAProxy
(RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S), and 5 s more. Ray's `graceful_shutdown_timeout_s` includes this wait,
so it is added there."""
START_SECONDS = 600.0
"""Default time in which a replica's models must be ready."""


def given_settings(resolved: Resolved) -> dict[str, Any]:
    """Return the settings that are not defaults, nested, as `app` takes them; the models are left out."""
    given: dict[str, Any] = {}
    for key in resolved.origins:
        if key == "models":
            continue
        value: Any = resolved.settings
        inside = given
        *sections, name = key.split(".")
        for section in sections:
            value, inside = getattr(value, section), inside.setdefault(section, {})
        inside[name] = getattr(value, name)
    return given


def _autoscaling(keys: Mapping[str, Any], settings: ServerSettings) -> dict[str, Any]:
    """Return Ray Serve's autoscaling configuration with ksrv's policy.

    Raises:
        SettingsError: The load of a server with these settings cannot be read.
    """
    if settings.http == "off" or not settings.metrics or settings.tls_client_ca is not None:
        raise SettingsError(
            "autoscaling reads the load on /metrics; expected http on, metrics on and no tls_client_ca; change these "
            "settings, or give a number of replicas"
        )
    from ray.serve.config import AutoscalingPolicy

    return {"policy": AutoscalingPolicy(policy_function=policy), **keys}


def app(
    models: str | Path | Sequence[str | Path],
    *,
    num_replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    actor: Mapping[str, Any] | None = None,
    start_timeout: float = START_SECONDS,
    **options: Any,
) -> Any:
    """Return an application of Ray Serve that serves models with a ksrv server in each replica.

    Args:
        models: A model repository, model folder or model file, or several, as every node sees them.
        num_replicas: How many replicas, 1 unless given; not together with `autoscaling`.
        autoscaling: Keys of Ray Serve's `AutoscalingConfig`: min_replicas, max_replicas,
            target_ongoing_requests, ...; the load of a replica is the requests that wait and run in it.
        settings: Any setting of `ksrv serve` but `models`, nested settings as mappings. By default the servers listen
            on the node's address, on free ports. Beyond loopback a token file, client certificates or
            `insecure` must be among them, as with `ksrv serve`.
        actor: Ray Serve's `ray_actor_options`: num_cpus (1 unless given), num_gpus, resources,
            runtime_env, ...
        start_timeout: Seconds in which a replica's models must be ready.
        options: Further options of Ray Serve's deployments, such as `max_replicas_per_node` or
            `max_surge_percent`.

    Returns:
        The application, for `ray.serve.run` or a Serve config file.

    Raises:
        SettingsError: A setting is unknown or cannot have its value, or `num_replicas` is given beside `autoscaling`.
        ModuleNotFoundError: Ray is not installed (extra `ray`).
    """
    paths = [models] if isinstance(models, str | Path) else list(models)
    flags = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in by_dotted_key(settings or {}).items()
    }
    if "models" in flags:
        raise SettingsError(
            "the settings have the key 'models'; expected other settings; give the models as the argument `models`"
        )
    if num_replicas is not None and autoscaling is not None:
        raise SettingsError(
            "num_replicas and autoscaling are both given; expected one; leave one out"
        )
    resolved = resolve(flags, environment={})
    server_settings, serve = resolved.settings, ray_serve()
    # The server gets one half of STOP_SECONDS. The other half is for the replica, which first withdraws its address.
    stop_seconds = server_settings.drain_delay + server_settings.stop_timeout + STOP_SECONDS / 2
    chosen: dict[str, Any] = {
        "name": DEPLOYMENT,
        # The server bounds its queues itself, and needs several requests at once to make batches.
        "max_ongoing_requests": 1000,
        # A new replica starts before an old replica stops, so that clients find an address throughout a redeploy.
        "max_surge_percent": 25,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 30.0,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": stop_seconds + STOP_SECONDS / 2 + RAY_DRAIN_SECONDS,
        "ray_actor_options": {"num_cpus": 1, **(actor or {})},
    }
    if autoscaling is None:
        chosen["num_replicas"] = 1 if num_replicas is None else num_replicas
    else:
        chosen["autoscaling_config"] = _autoscaling(autoscaling, server_settings)
    environment = (actor or {}).get("runtime_env")
    # A second deployment of the application: the replicas report their addresses to it.
    addresses = address_list({} if environment is None else {"runtime_env": environment})
    return serve.deployment(Replica, **(chosen | options)).bind(
        [str(path) for path in paths],
        given_settings(resolved),
        stop_seconds,
        start_timeout,
        addresses.bind(),
    )


def build(arguments: dict[str, Any]) -> Any:
    """Return the application of a Serve config file with `import_path: ksrv.ray:build`.

    If the `user_config` of the deployment in that file changes, the replicas read their models again in place, as on
    SIGHUP, without a lost request.

    Args:
        arguments: The `args` of the file: the arguments of `app`. `models` is required.

    Raises:
        TypeError: An argument is unknown, or `models` is missing.
        SettingsError: A setting is unknown or cannot have its value.
    """
    return app(**arguments)


__all__ = ["SettingsError", "app", "build", "given_settings"]
