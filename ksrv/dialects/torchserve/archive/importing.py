"""`ksrv import`: turns a TorchServe archive into a model's folder that serves the same.

The folder has the archive's files unchanged and a `model.yaml` with `torchserve: true`, so the handler keeps its
context, its rows and its model-config.yaml. The settings that ksrv read from model-config.yaml are repeated in
model.yaml, where a person can change them.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ksrv.dialects.torchserve.archive.archive import (
    ARCHIVE_SUFFIXES,
    MANIFEST,
    ArchiveError,
    open_archive,
    read_manifest,
)
from ksrv.dialects.torchserve.archive.model_config import ArchiveReport, archived_config
from ksrv.model.config import ModelConfig
from ksrv.repository.settings.keys import CONFIG_NAME


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """The model in an archive.

    Attributes:
        folder: The folder of the unpacked files.
    """

    name: str
    version: str
    folder: Path
    config: ModelConfig
    report: ArchiveReport

    def lines(self) -> list[str]:
        """Return the report on its settings, one key a line."""
        return self.report.lines()

    def write(self, repository: Path) -> Path:
        """Write the model's folder into a model repository.

        Args:
            repository: The model repository; created if it is missing.

        Returns:
            The model's folder.

        Raises:
            ArchiveError: The archive asks for settings that ksrv does not serve, or the folder exists;
                nothing is left behind.
            OSError: The folder cannot be written.
        """
        if self.report.refused:
            raise ArchiveError(
                f"the archive asks for settings that ksrv does not serve: {', '.join(self.report.refused)}; take them "
                f"out of its model-config.yaml"
            )
        target = repository / self.name
        if target.exists():
            raise ArchiveError(
                f"{target} exists; nothing was changed: remove it, or name another repository with --to"
            )
        repository.mkdir(parents=True, exist_ok=True)
        partial = repository / f".importing-{self.name}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(self.folder, partial, ignore=shutil.ignore_patterns("__pycache__"))
            (partial / CONFIG_NAME).write_text(_model_yaml(self), encoding="utf-8")
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target


def examine(path: Path) -> ArchiveInfo | None:
    """Return the model in an archive, or None if the path is not an archive.

    Args:
        path: The archive, or an unpacked archive.

    Raises:
        ArchiveError: The archive cannot be opened, or its settings are wrong.
    """
    if not (path.name.endswith(ARCHIVE_SUFFIXES) or (path / MANIFEST).is_file()):
        return None
    folder = open_archive(path)
    try:
        manifest = read_manifest(folder)
        config, report = archived_config(folder, manifest, archive=path.name)
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from None
    model = manifest.model
    return ArchiveInfo(model.model_name, model.model_version, folder, config, report)


def _model_yaml(found: ArchiveInfo) -> str:
    config = found.config
    keys: dict[str, Any] = {
        "torchserve": True,
        "device": config.device,
        "instances": config.instances,
        "queue_size": config.queue_size,
    }
    if config.batching is not None:
        keys["batching"] = {
            "max_batch_size": config.batching.max_batch_size,
            "max_delay_ms": config.batching.max_delay_ms,
            "split": config.batching.split,
        }
    if config.envelope:
        keys["envelope"] = config.envelope
    text = f"# Made from {found.name} {found.version}. These keys take precedence over model-config.yaml.\n"
    text += "".join(f"# {line}\n" for line in found.report.lines())
    return text + yaml.safe_dump(keys, sort_keys=False)
