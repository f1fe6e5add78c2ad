"""Turns a TorchServe archive into a model: its manifest and model-config.yaml become settings.

Every key of model-config.yaml is honoured, or named in the start-up report as ignored, or refused
where serving without it would give wrong answers.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ksrv.repository.archive import ArchiveError, Manifest, open_archive, read_manifest
from ksrv.repository.layout import ModelEntry
from ksrv.source import Batching, ModelConfig, ModelSource

log = logging.getLogger("ksrv.repository")

RUNNER = "ksrv.torchserve.runner:TorchServeRunner"
SUFFIXES = (".mar", ".model", ".tgz", ".gz")
RUNTIMES = ("python", "python3", "")
DEFAULT_BATCH_DELAY_MS = 100
DEFAULT_RESPONSE_TIMEOUT_S = 120

HANDLER_KEYS = ("pt2", "handler", "micro_batching", "deepspeed", "pippy")
IGNORED = {
    "maxRetryTimeoutInSec": "a process that keeps dying is restarted with growing pauses instead",
    "startupTimeout": "loading has no time limit of its own",
    "clientTimeoutInMills": "requests carry deadlines of their own",
    "useVenv": "requirements are installed only on request",
}
REFUSED = {
    "parallelType": "models spread over several processes are not served",
    "parallelLevel": "models spread over several processes are not served",
    "torchrun": "models spread over several processes are not served",
    "sequenceBatching": "sequences are not served",
    "sequenceMaxIdleMSec": "sequences are not served",
    "sequenceTimeoutMSec": "sequences are not served",
    "maxSequenceJobQueueSize": "sequences are not served",
    "maxNumSequence": "sequences are not served",
    "continuousBatching": "continuous batching is not served",
    "asyncCommunication": "asynchronous handlers are not served",
    "useJobTicket": "job tickets are not served",
}


@dataclass(slots=True)
class Report:
    """What an archive contains and what ksrv makes of it: the start-up report.

    Attributes:
        honoured: Keys of model-config.yaml with their meaning here.
        ignored: Keys that change nothing, with the reason.
        refused: Keys that keep the archive from being served, with the reason.
        handed_on: Keys that only the handler reads.
        missing_packages: Requirements that are not installed.
    """

    handler: str = ""
    honoured: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    handed_on: list[str] = field(default_factory=list)
    missing_packages: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as text, one fact a line."""
        text = [f"handler {self.handler}"]
        text += [f"{key}: {meaning}" for key, meaning in self.honoured.items()]
        text += [f"{key}: ignored, {reason}" for key, reason in self.ignored.items()]
        text += [f"{key}: REFUSED, {reason}" for key, reason in self.refused.items()]
        if self.handed_on:
            text.append(f"for the handler alone: {', '.join(self.handed_on)}")
        if self.missing_packages:
            text.append(f"not installed: {', '.join(self.missing_packages)}")
        return text


def read_archive(path: Path, name: str) -> ModelEntry:
    """Return the model that an archive holds.

    Args:
        path: The archive, or an unpacked one.
        name: The name to serve it under.

    Returns:
        The entry; an archive that cannot be served carries its error.
    """
    try:
        folder = open_archive(path)
        manifest = read_manifest(folder)
        config, report = archived_config(folder, manifest)
    except (ArchiveError, OSError) as error:
        return ModelEntry(name, error=str(error), path=path)
    version = manifest.model.model_version
    log.info("%s: %s", path.name, "; ".join(report.lines()))
    refusal = None
    if report.refused:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in report.refused.items())
        refusal = f"{path.name}: model-config.yaml asks for what is not served: {reasons}"
    source = ModelSource(
        name=name, version=version, folder=folder, root=folder, config=config, error=refusal
    )
    return ModelEntry(name, {version: source}, path=path)


def archived_config(folder: Path, manifest: Manifest) -> tuple[ModelConfig, Report]:
    """Return the settings that an unpacked archive asks for, and the report on them.

    Raises:
        ArchiveError: Manifest or model-config.yaml are not valid.
    """
    model = manifest.model
    if manifest.runtime not in RUNTIMES:
        raise ArchiveError(f"{folder.name}: the runtime {manifest.runtime!r} is not served")
    if not model.handler:
        raise ArchiveError(f"{folder.name}: the manifest names no handler")
    document = _model_config(folder, model.config_file)
    report = Report(handler=model.handler)
    settings = _Settings(document, report)
    batching = settings.batching()
    settings.rest()
    report.missing_packages = missing_packages(folder, model.requirements_file)
    config = ModelConfig(
        handler=model.handler,
        model=str(folder / model.serialized_file) if model.serialized_file else None,
        device=settings.device(),
        batching=batching,
        executor="process",
        instances=settings.instances(),
        timeout_ms=settings.timeout_ms(),
        queue_size=settings.number("jobQueueSize", 100, "requests may wait"),
        warmup=False,
        pt2=document.get("pt2"),
        runner=RUNNER,
        torchserve={"manifest": _raw_manifest(folder), "config": document},
    )
    return config, report


def _raw_manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = msgspec.json.decode((folder / "MAR-INF/MANIFEST.json").read_bytes())
    return manifest


def _model_config(folder: Path, name: str) -> dict[str, Any]:
    if not name:
        return {}
    try:
        document = yaml.safe_load((folder / name).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{name} cannot be read: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ArchiveError(f"{name} must hold a mapping, not a {type(document).__name__}")
    return {str(key): value for key, value in document.items()}


class _Settings:
    """Reads the keys of model-config.yaml and writes the report as it goes."""

    def __init__(self, document: dict[str, Any], report: Report) -> None:
        self._document = document
        self._report = report

    def number(self, key: str, default: int, meaning: str, least: int = 1) -> int:
        if key not in self._document:
            return default
        value = self._document[key]
        if type(value) is not int or value < least:
            raise ArchiveError(
                f"model-config.yaml: {key} is a whole number from {least}, not {value!r}"
            )
        self._report.honoured[key] = f"{value} {meaning}"
        return value

    def batching(self) -> Batching | None:
        size = self.number("batchSize", 1, "requests in a batch at most")
        delay = self.number("maxBatchDelay", DEFAULT_BATCH_DELAY_MS, "ms wait for a full batch", 0)
        return Batching(max_batch_size=size, max_delay_ms=delay) if size > 1 else None

    def instances(self) -> int:
        least = self.number("minWorkers", 1, "processes", 0)
        most = self.number("maxWorkers", max(least, 1), "processes at most")
        return max(1, min(least, most))

    def timeout_ms(self) -> int:
        seconds = self.number("responseTimeout", DEFAULT_RESPONSE_TIMEOUT_S, "s for an answer")
        return seconds * 1000

    def device(self) -> str:
        kind = self._document.get("deviceType")
        if kind is None:
            return "auto"
        if kind not in ("cpu", "gpu", "neuron"):
            raise ArchiveError(f"model-config.yaml: deviceType is cpu or gpu, not {kind!r}")
        self._report.honoured["deviceType"] = str(kind)
        if kind == "cpu":
            return "cpu"
        ids = self._document.get("deviceIds") or []
        if not isinstance(ids, list) or any(type(entry) is not int for entry in ids):
            raise ArchiveError(f"model-config.yaml: deviceIds is a list of numbers, not {ids!r}")
        if ids:
            self._report.honoured["deviceIds"] = ", ".join(map(str, ids))
        return f"cuda:{ids[0]}" if len(ids) == 1 else "auto"

    def rest(self) -> None:
        for key, value in self._document.items():
            if key in REFUSED:
                if value not in (None, False, 0, ""):
                    self._report.refused[key] = REFUSED[key]
            elif key in IGNORED:
                self._report.ignored[key] = IGNORED[key]
            elif key in HANDLER_KEYS or not _is_server_key(key):
                self._report.handed_on.append(key)


def _is_server_key(key: str) -> bool:
    return key in (
        "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "deviceType",
        "deviceIds", "jobQueueSize",
    )  # fmt: skip


def missing_packages(folder: Path, requirements_file: str) -> list[str]:
    """Return the distributions that the archive's requirements name and that are not installed.

    Versions are not compared: this is for the report, not a resolver.
    """
    if not requirements_file or not (folder / requirements_file).is_file():
        return []
    missing = []
    for line in (folder / requirements_file).read_text().splitlines():
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
        if match is None or line.lstrip().startswith(("#", "-")):
            continue
        try:
            metadata.distribution(match[1])
        except metadata.PackageNotFoundError:
            missing.append(match[1])
    return missing


ARCHIVE_READERS: dict[str, Callable[[Path, str], ModelEntry]] = dict.fromkeys(
    SUFFIXES, read_archive
)
"""What `Repository` is given so that it serves archives."""
