"""Unpacked TorchServe archives with a model.yaml: `torchserve: true`, as `ksrv import` writes it.

The archive's manifest and model-config.yaml hold; what model.yaml says wins over them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.repository.torchserve.archive import ArchiveError, read_manifest
from ksrv.repository.torchserve.model_config import archived_config
from ksrv.repository.yaml_document import ConfigError, Fields
from ksrv.source import ModelConfig

KEYS = (
    "torchserve",
    "device",
    "batching",
    "retry",
    "instances",
    "threads",
    "timeout_ms",
    "run_timeout_ms",
    "start_timeout_ms",
    "queue_size",
    "envelope",
    "env",
)
_LARGEST = 2**31 - 1

Reader = Callable[[Fields], Any]


def read_unpacked(fields: Fields, folder: Path, readers: Mapping[str, Reader]) -> ModelConfig:
    """Return the settings of an unpacked archive.

    Args:
        fields: Its model.yaml.
        folder: Its folder.
        readers: What reads the keys that mean the same in every model.yaml.

    Raises:
        ConfigError: model.yaml or the archive's own files are wrong.
    """
    fields.only(*KEYS)
    if not fields.flag("torchserve", True):
        fields.fail("torchserve", "is true in a folder that holds an archive's files, or left out.")
    try:
        config, report = archived_config(folder, read_manifest(folder), archive=folder.name)
    except ArchiveError as error:
        raise ConfigError(f"{folder}: {error}") from error
    if report.refused:
        asked = ", ".join(report.refused)
        raise ConfigError(f"{folder}: its settings ask for what is not served: {asked}.")
    changes: dict[str, Any] = {
        "retry": fields.flag("retry", config.retry),
        "instances": fields.integer("instances", config.instances, 1, 1024),
        "threads": fields.integer("threads", config.threads, 0, 4096),
        "timeout_ms": fields.integer("timeout_ms", config.timeout_ms, 0, _LARGEST),
        "run_timeout_ms": fields.integer("run_timeout_ms", config.run_timeout_ms, 0, _LARGEST),
        "start_timeout_s": fields.integer(
            "start_timeout_ms", round(config.start_timeout_s * 1000), 1, _LARGEST
        )
        / 1000,
        "queue_size": fields.integer("queue_size", config.queue_size, 1, 1_000_000),
        "envelope": fields.text("envelope") or config.envelope,
    }
    changes |= {key: read(fields) for key, read in readers.items() if key in fields}
    return replace(config, **changes)
