"""Reads model_config_list files, which TensorFlow Serving's `--model_config_file` names: names, base paths and versions.

A base path is a model of any kind that ksrv serves, with or without version folders.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ksrv.dialects.numbered_versions import labelled, number_of
from ksrv.dialects.registry import formats
from ksrv.errors import InvalidRequest, NotFound, did_you_mean, quote
from ksrv.model.config import VersionPolicy
from ksrv.model.fault import ConfigError
from ksrv.protocol.protobuf import message_class
from ksrv.repository.entry import ModelEntry, is_model_name
from ksrv.repository.fingerprint import files_below
from ksrv.repository.layout import folder_entry
from ksrv.repository.report import Report
from ksrv.repository.yaml_document import read_settings_text

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class ModelListReader:
    """The `ListReader` of such files (`ksrv.repository.format`)."""

    suffix = ".config"

    def read(self, path: Path) -> Iterator[ModelEntry]:
        """Yield the models that a file lists. A fault of one model is the error of its entry.

        Raises:
            ConfigError: The file is not a model_config_list.
        """
        for index, config in enumerate(_read(path).config):
            try:
                entry = _entry(config, path)
            except (ConfigError, OSError) as error:
                name = config.name if is_model_name(config.name) else f"model_config_list.{index}"
                entry = ModelEntry(name, error=f"{path}: {name}: {error}", path=path)
            yield entry


def _read(path: Path) -> Any:
    """Return the ModelConfigList of a file."""
    from google.protobuf import text_format

    message = message_class("tensorflow.serving.ModelServerConfig")()
    try:
        text_format.Parse(read_settings_text(path), message)
    except text_format.ParseError as error:
        row, column = error.GetLine() or 1, error.GetColumn() or 1
        fault = ascii(str(error).removeprefix(f"{row}:{column} : ")[:300])[1:-1]
        raise ConfigError(f"{path}, line {row}, column {column}: {fault}") from None
    if message.WhichOneof("config") != "model_config_list":
        raise ConfigError(
            f"{path}: expected model_config_list {{ config {{ name: ... base_path: ... }} }}, as --model_config_file of "
            "TensorFlow Serving takes it"
        )
    return message.model_config_list


def _entry(config: Any, path: Path) -> ModelEntry:
    """Return the model of a ModelConfig in a file. A relative base path is relative to the file's folder.

    The file is a file of the model, too, so that a change of its labels loads the model again.

    Raises:
        ConfigError: The model cannot be served.
    """
    if not is_model_name(config.name):
        raise ConfigError(f"{quote(config.name)} is no model name")
    root = (path.absolute().parent / config.base_path).absolute()
    if not config.base_path or "://" in config.base_path or not root.is_dir():
        raise ConfigError(
            f"base_path {quote(config.base_path)} is no folder of this machine; copy a remote model to a folder first"
        )
    entry = _configured(ModelEntry(config.name, path=root), config)
    for version, source in entry.versions.items():
        files = (str(path.absolute()), *map(str, files_below(source)))
        entry.versions[version] = msgspec.structs.replace(source, files=files)
    entry.report = Report(applied={"base_path": str(root)})
    if config.HasField("logging_config"):
        entry.report.ignored["logging_config"] = "record: in model.yaml writes samples of requests"
    return entry


def _configured(entry: ModelEntry, config: Any) -> ModelEntry:
    """Return a model with the versions and labels of a ModelConfig.

    Raises:
        ConfigError: The folder is not a model, or a label is for a version that is not served.
    """
    if entry.path.is_dir():
        entry = folder_entry(entry.path, entry.name, formats(), _policy(config))
    served = {number_of(version) for version in entry.versions}
    for label, number in config.version_labels.items():
        if number not in served and not entry.error:
            raise ConfigError(
                f"version_labels: {quote(label)} is for version {number}, which is not served; served are "
                f"{', '.join(map(str, sorted(served)))} (model_version_policy serves others)"
            )
    for version, source in entry.versions.items():
        if source.config is not None:
            dialect = source.config.dialect | labelled(config.version_labels)
            with_labels = msgspec.structs.replace(source.config, dialect=dialect)
            entry.versions[version] = msgspec.structs.replace(source, config=with_labels)
    return entry


def _policy(config: Any) -> VersionPolicy | None:
    """Return the versions that are served; None for the default, the version with the highest number."""
    policy = config.model_version_policy
    if policy.HasField("specific"):
        return VersionPolicy(specific=tuple(dict.fromkeys(policy.specific.versions)))
    if policy.HasField("latest"):
        return VersionPolicy(latest=policy.latest.num_versions or 1)
    return VersionPolicy(latest=0) if policy.HasField("all") else None


def reload_models(engine: "Engine", config: Any) -> None:
    """Serve the models of a ModelServerConfig, and no others. Without a list, load what has changed on disk.

    Only models of the repository can be served, from their folders there, so that a call cannot load other code.

    Raises:
        KsrvError: A model is not in the repository, or cannot be loaded. Models before it in the list are loaded.
    """
    if config.WhichOneof("config") == "custom_model_config":
        raise InvalidRequest("custom_model_config is not served; send a model_config_list")
    if not config.model_config_list.config:
        engine.reload_changed()
        return
    found = engine.repository.look()
    for one in config.model_config_list.config:
        entry = found.get(one.name)
        if entry is None:
            raise NotFound(
                f"the repository has no model {quote(one.name)}{did_you_mean(one.name, found)}; a call serves only models "
                "of the repository: add it to the server's model_config_list file or folder"
            )
        if one.base_path and Path(one.base_path).resolve() != entry.path.resolve():
            raise InvalidRequest(
                f"the base_path of {quote(one.name)} is not its folder in the repository, and a call cannot change it; "
                "leave base_path empty"
            )
    for one in config.model_config_list.config:
        engine.load(one.name, adjust=partial(_adjusted, config=one))
    listed = {one.name for one in config.model_config_list.config}
    for name in {state.name for state in engine.index() if state.state != "UNAVAILABLE"} - listed:
        engine.unload(name)


def _adjusted(entry: ModelEntry, config: Any) -> ModelEntry:
    try:
        return _configured(entry, config)
    except ConfigError as error:
        raise InvalidRequest(f"{quote(entry.name)}: {error}") from None
