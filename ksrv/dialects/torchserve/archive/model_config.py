"""Turns a TorchServe archive into a model: its manifest and model-config.yaml become settings.

Every key of model-config.yaml is applied, ignored with a line in the start-up report, or refused if the model would
give wrong answers without it.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta
from msgspec.structs import replace

from ksrv.dialects.torchserve.archive.archive import (
    MANIFEST,
    ArchiveError,
    Manifest,
    ManifestModel,
    open_archive,
    read_manifest,
    read_settings,
)
from ksrv.dialects.torchserve.archive.defaults import ArchiveDefaults
from ksrv.dialects.torchserve.calls import FORMAT, KSERVE_V2, RUNNER
from ksrv.model.config import JoinPolicy, ModelConfig
from ksrv.model.fault import ConfigError, KeyPath
from ksrv.model.spec import LARGEST_SIZE
from ksrv.repository.entry import ModelEntry, unversioned
from ksrv.repository.report import Report
from ksrv.repository.yaml_document import MAX_BYTES, MAX_DEPTH, MAX_NODES, Document, describe

log = logging.getLogger("ksrv.repository")

_BOUNDS = {"values": MAX_NODES, "characters": MAX_BYTES, "levels": MAX_DEPTH}

RUNTIMES = ("python", "python3", "")
DEFAULT_BATCH_DELAY_MS = 100
"""TorchServe's default for `maxBatchDelay`."""
PYTHON_HINT = "make an environment with the requirements and name it in python: of model.yaml (ksrv import --to)"
IGNORED = {
    "maxRetryTimeoutInSec": "a process that keeps dying is restarted with growing pauses instead",
    "useVenv": f"ksrv installs no packages; {PYTHON_HINT}",
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
"""Why ksrv does not serve a model with such a key; `IGNORED` has keys without which it serves."""

Whole = Annotated[int, Meta(ge=0, le=LARGEST_SIZE)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]


class _StandIns(msgspec.Struct):
    """The key `ksrv` of model-config.yaml: whether ksrv's stand-in for a missing torchvision may be used."""

    torchvision: bool = True


class ServerKeys(msgspec.Struct, rename="camel"):
    """The keys of model-config.yaml that are for the server; None for a key that is left out."""

    min_workers: Whole | None = None
    max_workers: Positive | None = None
    batch_size: Positive | None = None
    max_batch_delay: Whole | None = None
    response_timeout: Positive | None = None
    startup_timeout: Positive | None = None
    client_timeout_in_mills: Whole | None = None
    job_queue_size: Positive | None = None
    device_type: Any = None
    device_ids: list[Whole] | None = None
    envelope: Annotated[str, Meta(min_length=1)] | None = None
    ksrv: _StandIns | None = None


_MEANINGS = {
    "minWorkers": "processes",
    "maxWorkers": "processes at most",
    "batchSize": "requests in a batch at most",
    "maxBatchDelay": "ms wait for a full batch",
    "responseTimeout": "s for one batch",
    "startupTimeout": "s for a process to get ready",
    "clientTimeoutInMills": "ms from a request's arrival",
    "jobQueueSize": "requests may wait",
}
"""The end of the line in the report on an applied key, after its value."""
_SERVER_KEYS = [known.encode_name for known in msgspec.structs.fields(ServerKeys)]


@dataclass(slots=True)
class ArchiveReport(Report):
    """The start-up report on an archive: its contents, and the settings that ksrv applies.

    Attributes:
        handler: The handler's file.
        passed_through: Keys that only the handler reads.
        missing_packages: Requirements that are not installed.
    """

    handler: str = ""
    passed_through: list[str] = field(default_factory=list)
    missing_packages: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as text, one fact a line."""
        text = [f"handler {self.handler}", *Report.lines(self)]
        if self.passed_through:
            text.append(f"for the handler alone: {', '.join(self.passed_through)}")
        if self.missing_packages:
            missing = ", ".join(self.missing_packages)
            text.append(f"not installed: {missing}; {PYTHON_HINT}")
        return text


def read_archive(path: Path, name: str, defaults: ArchiveDefaults | None = None) -> ModelEntry:
    """Return the model in an archive, under the name in its manifest.

    Args:
        path: The archive, or an unpacked archive.
        name: The name for the entry if the manifest cannot be read.
        defaults: The defaults for keys that the archive leaves out.

    Returns:
        The entry, which has an error if the archive cannot be served.
    """
    try:
        folder = open_archive(path)
    except (ArchiveError, OSError) as error:
        return ModelEntry(name, error=str(error), path=path)
    try:
        manifest = read_manifest(folder)
        config, report = archived_config(folder, manifest, defaults, archive=path.name)
    except (ArchiveError, OSError) as error:
        return ModelEntry(name, error=f"{path}: {error}", path=path)
    log.info("%s: %s", path.name, "; ".join(report.lines()))
    refusal = None
    if report.refused:
        file = manifest.model.config_file or "config.properties"
        refusal = f"{path}: {file} asks for settings that ksrv does not serve: {report.refusals()}"
    return unversioned(manifest.model.model_name, path, folder, config, error=refusal)


def archived_config(
    folder: Path, manifest: Manifest, defaults: ArchiveDefaults | None = None, *, archive: str = ""
) -> tuple[ModelConfig, ArchiveReport]:
    """Return the settings that an unpacked archive asks for, and the report on them.

    Args:
        defaults: The defaults for keys that the archive leaves out.

    Raises:
        ArchiveError: Manifest or model-config.yaml are not valid.
    """
    model = manifest.model
    if manifest.runtime not in RUNTIMES:
        raise ArchiveError(
            f"{MANIFEST}: the runtime {manifest.runtime!r} is not served; expected python or python3"
        )
    if not model.handler:
        raise ArchiveError(
            f"{MANIFEST} names no handler; make the archive again with torch-model-archiver --handler"
        )
    defaults = defaults or ArchiveDefaults()
    yaml_config, lines = _model_config(folder, model.config_file)
    report = ArchiveReport(handler=model.handler)
    document = Document.of(Path(model.config_file), {**yaml_config}, lines)
    # fill=True: only keys that model-config.yaml lacks.
    document.take(_property_keys(model, defaults), fill=True)
    try:
        keys = document.convert(
            ServerKeys, {key: document.value[key] for key in _SERVER_KEYS if key in document.value}
        )
        device = _device(keys, document, report)
    except ConfigError as error:
        raise ArchiveError(str(error)) from None
    _report_keys(document.value, lines, report)
    if (envelope := keys.envelope or defaults.envelope) is not None:
        report.applied["envelope"] = f"{envelope} around the handler"
    batch_size = keys.batch_size or 1
    if batch_size > 1 and envelope == KSERVE_V2:
        for key in ("batchSize", "maxBatchDelay"):
            if report.applied.pop(key, None):
                report.ignored[key] = "requests with this envelope run one by one"
    delay = DEFAULT_BATCH_DELAY_MS if keys.max_batch_delay is None else keys.max_batch_delay
    stand_ins = keys.ksrv or _StandIns()
    if keys.ksrv is not None:
        report.applied["ksrv"] = f"torchvision stand-in {'on' if stand_ins.torchvision else 'off'}"
    workers = defaults.workers if keys.min_workers is None else keys.min_workers
    report.missing_packages = missing_packages(folder, model.requirements_file)
    config = ModelConfig(
        handler=model.handler,
        model=str(folder / model.serialized_file) if model.serialized_file else None,
        device=device,
        batching=_batching(batch_size, delay, envelope),
        executor="process",
        # As in TorchServe: if a worker dies, its requests fail at once, and the client decides about a retry.
        retry=False,
        instances=max(1, min(workers, keys.max_workers or workers)),
        timeout_ms=keys.client_timeout_in_mills or 0,
        run_timeout_ms=1000 * (keys.response_timeout or defaults.response_timeout_s),
        start_timeout_s=keys.startup_timeout or defaults.startup_timeout_s,
        queue_size=keys.job_queue_size or defaults.queue_size,
        warmup=False,
        pt2=yaml_config.get("pt2"),
        envelope=envelope,
        runner=RUNNER,
        own_version=model.model_version,
        dialect={
            FORMAT: {
                "manifest": msgspec.json.decode(read_settings(folder, str(MANIFEST))),
                "config": yaml_config,
                "archive": archive,
                "batch_size": batch_size,
                "device_ids": keys.device_ids or [],
                "decode": defaults.decode,
                "metrics": list(defaults.metrics),
                "torchvision": stand_ins.torchvision,
            }
        },
    )
    return config, report


def _property_keys(model: ManifestModel, defaults: ArchiveDefaults) -> Document:
    """Return the keys that `models` of a config.properties has for this version of the model."""
    keys = dict(defaults.models.get(model.model_name, {}).get(model.model_version, {}))
    for key in ("defaultVersion", "marName"):  # they choose the archive, and are not settings
        keys.pop(key, None)
    return Document.of(Path("models of config.properties"), keys, {})


def _check_aliases(root: yaml.Node) -> None:
    """Refuse a small file that becomes huge by its aliases. An alias counts as a copy of all that it names.

    Args:
        root: The composed tree, before its values are built.

    Raises:
        yaml.MarkedYAMLError: The tree has more than `MAX_NODES` values, more than `MAX_BYTES` characters
            or more than `MAX_DEPTH` levels.
    """
    waiting = [(root, 0)]
    count = characters = 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            waiting += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in node.value]
        else:
            characters += len(node.value)
        counted = {"values": count, "characters": characters, "levels": depth}
        for unit, most in _BOUNDS.items():
            if counted[unit] > most:
                raise yaml.MarkedYAMLError(
                    problem=f"the file has more than {most} {unit}, with what its aliases repeat",
                    problem_mark=node.start_mark,
                )


def _model_config(folder: Path, name: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return the model-config.yaml as a handler sees it, and the line of each key."""
    if not name:
        return {}, {}
    try:
        text = read_settings(folder, name).decode()
        tree = yaml.compose(text, yaml.SafeLoader)
        if tree is not None:
            _check_aliases(tree)
        document = yaml.safe_load(text)
    except ArchiveError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise ArchiveError(f"{name}{where}: {error.problem or error.context}") from None
    except (OSError, yaml.YAMLError, ValueError) as error:  # such as a date that does not exist
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArchiveError(
            f"{name} cannot be read: {reason}; expected the YAML file that configFile names"
        ) from None
    except RecursionError:
        raise ArchiveError(
            f"{name} is nested too deep to be read; expected keys and values, as TorchServe has them"
        ) from None
    if document is None:
        return {}, {}
    if not isinstance(document, dict):
        raise ArchiveError(f"{name}, line 1: expected keys and values, found {describe(document)}")
    assert isinstance(tree, yaml.MappingNode)  # because the document is a dict
    lines: dict[KeyPath, int] = {(key.value,): key.start_mark.line + 1 for key, _ in tree.value}
    return {str(key): value for key, value in document.items()}, lines


def _device(keys: ServerKeys, document: Document, report: ArchiveReport) -> str:
    """Return the setting `device`. If `deviceIds` has several ids, the runner chooses one for each instance."""
    given = keys.device_type
    if given in (None, ""):
        return "auto"
    kind = str(given).lower()
    if kind not in ("cpu", "gpu"):
        document.fail(("deviceType",), f"expected cpu or gpu, found {describe(given)}")
    report.applied["deviceType"] = kind
    if kind == "cpu":
        return "cpu"
    ids = keys.device_ids or []
    if ids:
        report.applied["deviceIds"] = ", ".join(map(str, ids))
    return f"cuda:{ids[0]}" if len(ids) == 1 else "auto"


def _report_keys(
    given: Mapping[str, Any], lines: Mapping[KeyPath, int], report: ArchiveReport
) -> None:
    """Put every key into the report: refused, ignored, applied, or passed through to the handler."""
    for key, value in given.items():
        if key in REFUSED:
            if value not in (None, False, 0, ""):
                line = lines.get((key,))
                report.refused[key] = REFUSED[key] + (f" (line {line})" if line else "")
        elif key in IGNORED:
            if value is not False:
                report.ignored[key] = IGNORED[key]
        elif key not in _SERVER_KEYS:
            report.passed_through.append(key)
        elif key in _MEANINGS and value is not None:
            report.applied[key] = f"{value} {_MEANINGS[key]}"


def with_batches(config: ModelConfig, size: int, delay_ms: int) -> ModelConfig:
    """Return an archive's settings with batches, unless the archive or config.properties sets them, as in TorchServe.

    Args:
        size: Requests in a batch at most.
        delay_ms: How long the first request of a batch waits.
    """
    archive = config.dialect[FORMAT]
    if "batchSize" in archive["config"] or archive["batch_size"] != 1:
        return config
    delay = archive["config"].get("maxBatchDelay", delay_ms)
    return replace(
        config,
        batching=_batching(size, delay, config.envelope),
        dialect={**config.dialect, FORMAT: {**archive, "batch_size": size}},
    )


def _batching(size: int, delay_ms: float, envelope: str | None) -> JoinPolicy | None:
    """Return how requests join; None if they run one by one, as with the envelope `kservev2`."""
    if size == 1 or envelope == KSERVE_V2:
        return None
    return JoinPolicy(max_batch_size=size, max_delay_ms=delay_ms, split=True)


def missing_packages(folder: Path, requirements_file: str) -> list[str]:
    """Return the distributions that the archive's requirements name and that are not installed.

    Versions are not compared: this is for the report, not a resolver.

    Raises:
        ArchiveError: The requirements cannot be read.
    """
    if not requirements_file or not (folder / requirements_file).is_file():
        return []
    missing = []
    try:
        text = read_settings(folder, requirements_file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArchiveError(
            f"{requirements_file} cannot be read: {reason}; expected UTF-8 text with one package a line"
        ) from None
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
        if match is None or line.lstrip().startswith(("#", "-")):
            continue
        try:
            metadata.distribution(match[1])
        except metadata.PackageNotFoundError:
            missing.append(match[1])
    return missing
