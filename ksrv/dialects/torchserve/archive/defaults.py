"""The defaults for keys that an archive leaves out. A config.properties may set them."""

from typing import Any

import msgspec


class ArchiveDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults for the keys that an archive's model-config.yaml leaves out.

    Attributes:
        workers: Processes of one model.
        response_timeout_s: How long a handler may take for one batch.
        startup_timeout_s: How long a process may take to get ready.
        queue_size: How many requests may wait.
        envelope: The envelope, or None.
        decode: Whether JSON and text parts are decoded for the handler.
        models: Keys of model-config.yaml by model and version, from `models=` of a config.properties.
        metrics: The `name`, `unit`, `dimensions` and `kind` of each metric that the metrics.yaml of
            a config.properties declares; empty for `DEFAULT_METRICS`.
    """

    workers: int = 1
    response_timeout_s: int = 120
    startup_timeout_s: int = 120
    queue_size: int = 100
    envelope: str | None = None
    decode: bool = True
    models: dict[str, dict[str, dict[str, Any]]] = {}
    metrics: tuple[dict[str, Any], ...] = ()
