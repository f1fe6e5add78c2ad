"""Unpacked TorchServe archives with a model.yaml: `torchserve: true`, as `ksrv import` writes it.

The archive's manifest and model-config.yaml apply; keys in model.yaml take precedence.
"""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.dialects.torchserve.archive.archive import ArchiveError, read_manifest
from ksrv.dialects.torchserve.archive.model_config import archived_config
from ksrv.model.config import ModelConfig
from ksrv.model.fault import ConfigError, Fault


def read_unpacked(keys: Any, settings: dict[str, Any], folder: Path) -> ModelConfig:
    """Return the settings of an unpacked archive.

    Raises:
        ConfigError: model.yaml or a file of the archive is wrong.
    """
    if not keys.torchserve:
        raise Fault(
            ("torchserve",), "is true in a folder that holds an archive's files, or left out"
        )
    try:
        config, report = archived_config(folder, read_manifest(folder), archive=folder.name)
    except ArchiveError as error:
        raise ConfigError(f"{folder}: {error}") from error
    if report.refused:
        asked = ", ".join(report.refused)
        raise ConfigError(
            f"{folder}: its settings ask for keys that ksrv does not serve: {asked}; take them out"
        )
    return replace(config, **settings)
