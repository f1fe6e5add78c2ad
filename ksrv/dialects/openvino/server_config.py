"""Reads the config.json of an OpenVINO Model Server (OVMS): the models that it lists, which stay in their folders.

`read_server_config` yields a `ModelEntry` for each model. Every key is applied, or reported as ignored, or refused if
answers would be wrong without it. A model with a refused key is not served; the others are.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ksrv.dialects.openvino.config_keys import (
    IGNORED,
    REFUSED,
    ModelItem,
    ModelKeys,
    NameMappings,
    ServerKeys,
    VersionPolicyKeys,
)
from ksrv.dialects.openvino.json_document import read_json
from ksrv.dialects.openvino.options import LOADER, OpenVinoOptions
from ksrv.dialects.openvino.stateful import STATEFUL_HANDLER, read_sequences
from ksrv.errors import LEADS_OUT
from ksrv.model.config import ModelConfig, ModelSource, OpenVinoSettings, VersionPolicy
from ksrv.model.fault import ConfigError, Fault, KeyPath
from ksrv.model.spec import LARGEST_SIZE, Dimension, read_dimension
from ksrv.repository.entry import ModelEntry, is_model_name
from ksrv.repository.report import Report
from ksrv.repository.versions import choose_versions, version_folders
from ksrv.repository.yaml_document import Document, describe

CONFIG_SUFFIX = ".json"
MAPPING_NAME = "mapping_config.json"
MOST_INSTANCES = 1024

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SHAPE = re.compile(r"\(\s*([-0-9:,\s]*?),?\s*\)")  # such as "(1,3,224,224)"
_LAYOUT = re.compile(r"[A-Za-z?.]{1,16}(:[A-Za-z?.]{1,16})?")  # such as "NHWC:NCHW"
_MAX_RANK = 32
_KINDS = ("*.xml", "*.onnx", "*.tflite", "saved_model.pb")
"""The model files that are read. If a folder has several kinds, the first of this list is read."""
_OTHERS = (".pdmodel", ".pb", ".bin", ".gguf", ".safetensors")
"""Suffixes of model files that OVMS reads, but ksrv does not; for the error text."""
_NOT_SERVED = {
    "mediapipe_config_list": "MediaPipe graphs are not served; a handler that calls models does what they do",
    "pipeline_config_list": "pipelines are not served; a handler that calls models does what they do",
}


def read_server_config(path: Path) -> Iterator[ModelEntry]:
    """Yield the models of a config.json. A fault in one model is the error of its entry.

    Raises:
        ConfigError: The file is not a config.json.
    """
    document = read_json(path)
    if not isinstance(document.value, dict) or "model_config_list" not in document.value:
        document.fail((), f"expected model_config_list, found {describe(document.value)}")
    keys = document.convert(ServerKeys, document.value)
    general = Report()  # of keys of the whole file; the first model's report shows them
    if keys.monitoring:
        general.ignored["monitoring"] = "/metrics is there by itself"
    for key in ("custom_node_library_config_list", "custom_loader_config_list"):
        if getattr(keys, key):
            general.ignored[key] = "libraries of one's own are not loaded"
    for index, item in enumerate(keys.model_config_list):
        yield _Model(path, document, index, general).entry(item)
        general = Report()
    for key, reason in _NOT_SERVED.items():
        for index, item in enumerate(getattr(keys, key)):
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or not is_model_name(name):
                name = f"{key}.{index}"
            report = Report(refused={key: reason})
            yield ModelEntry(name, error=f"{path}: {name}: {reason}", path=path, report=report)


class _Model:
    """Reads one model of the list. Each key that is read adds a line to the model's report.

    Args:
        general: The report to begin with: on keys of the whole file for the first model, else empty.
    """

    def __init__(self, path: Path, document: Document, index: int, general: Report) -> None:
        self._path = path
        self._document = document
        self._at: KeyPath = ("model_config_list", index, "config")
        self._index = index
        self._report = general

    def entry(self, item: Any) -> ModelEntry:
        """Return the model's entry, with an error if the model cannot be served."""
        raw = item.get("config") if isinstance(item, dict) else None
        given = raw.get("name") if isinstance(raw, dict) else None
        named = isinstance(given, str) and is_model_name(given)
        entry = ModelEntry(
            str(given) if named else f"model_config_list.{self._index}",
            path=self._path,
            report=self._report,
        )
        try:
            with self._document.naming_faults(self._at):
                if given is not None and not named:
                    raise Fault(("name",), f"{describe(given)} is not a model name")
                self._document.convert(ModelItem, item, self._at[:-1])
                self._fill(entry, self._document.convert(ModelKeys, raw, self._at))
        except (ConfigError, OSError) as error:
            entry.error = str(error)
        return entry

    def _fill(self, entry: ModelEntry, keys: ModelKeys) -> None:
        """Read the keys of a model, and find the folders of its versions."""
        root = entry.path = self._base_path(keys.base_path)
        config = self._config(keys)
        if self._report.refused:
            entry.error = (
                f"{self._path}: the model {entry.name} asks for what ksrv does not do: "
                f"{self._report.refusals()}"
            )
            return
        folders = version_folders(root)
        if not folders and _model_files(root):  # a model without version folders has version 1
            folders = {"1": root}
        if not folders:
            raise Fault(("base_path",), f"{root} holds no version folder, such as {root / '1'}")
        chosen, fault = choose_versions(config.version_policy, folders)
        if fault:
            raise Fault(("model_version_policy",), fault)
        for version in chosen:
            source = self._version(entry.name, version, folders[version], root, config)
            entry.versions[version] = source

    def _version(
        self, name: str, version: str, folder: Path, root: Path, config: ModelConfig
    ) -> ModelSource:
        """Return one version of the model, with its files and with an error if it cannot be served."""
        error = None
        files: tuple[str, ...] = (str(self._path.absolute()),)
        try:
            # The variables of a saved_model.pb are in a folder beside it.
            found = [*folder.iterdir(), *folder.glob("variables/*")]
            files += tuple(sorted(str(file) for file in found if file.is_file()))
            options = OpenVinoOptions.of(config.dialect)
            if (folder / MAPPING_NAME).is_file():
                options = msgspec.structs.replace(options, names=_names(folder / MAPPING_NAME))
            model = str(_model_file(folder, root))
            config = msgspec.structs.replace(config, model=model, dialect=options.mapping())
        except (ConfigError, OSError) as problem:
            error = str(problem)
        return ModelSource(
            name=name, version=version, folder=folder, root=root, config=config, error=error,
            files=files,
        )  # fmt: skip

    # ---- keys -------------------------------------------------------------------------------

    def _base_path(self, given: str) -> Path:
        """Return the model's folder. A relative path is relative to the config.json."""
        if _REMOTE.match(given):
            raise Fault(
                ("base_path",), "remote storage is not read; copy the model to a folder first"
            )
        path = Path(given)
        if ".." in path.parts or "\0" in given:
            raise Fault(("base_path",), f"{given[:128]!r} goes up a folder; name the folder itself")
        root = (self._path.absolute().parent / path).absolute()
        if not root.is_dir():
            raise Fault(("base_path",), f"{root} is not a folder")
        self._report.applied["base_path"] = str(root)
        return root

    def _config(self, keys: ModelKeys) -> ModelConfig:
        """Convert the keys of a model to a `ModelConfig`."""
        report = self._report
        for table, into in ((REFUSED, report.refused), (IGNORED, report.ignored)):
            for key, reason in table.items():
                if getattr(keys, key) not in (None, {}, ""):
                    into[key] = reason
        sequences = read_sequences(keys, report)
        self._device(keys.target_device)
        properties, instances = self._properties(keys.plugin_config)
        shapes = self._shapes(keys.shape)
        batch: Dimension = 0
        if keys.batch_size is not None and shapes:
            report.ignored["batch_size"] = "shape says it"
        elif keys.batch_size is not None:
            batch = self._batch(keys.batch_size)
        options = OpenVinoOptions(
            batch=batch,
            shapes=shapes,
            layouts=self._layouts(keys.layout),
            stateful=sequences is not None,
            low_latency=sequences is not None and bool(keys.low_latency_transformation),
        )
        return ModelConfig(
            handler=None if sequences is None else STATEFUL_HANDLER,
            sequences=sequences,
            device="cpu",
            instances=instances,
            runtime=LOADER,
            openvino=OpenVinoSettings(properties=properties),
            dialect=options.mapping(),
            version_policy=self._version_policy(keys.model_version_policy),
        )

    def _device(self, device: str | None) -> None:
        if device is None:
            return
        if device in ("CPU", "AUTO", "AUTO:CPU", "MULTI:CPU", "HETERO:CPU"):
            self._report.applied["target_device"] = "the CPU"
        else:
            self._report.refused["target_device"] = (
                f"{device[:64]!r}; OpenVINO's models run on the CPU"
            )

    def _batch(self, value: Any) -> Dimension:
        text = str(value).strip()
        size = -1 if text == "auto" else read_dimension(int(text) if _is_whole(text) else text)
        if size is None or isinstance(value, bool | float | list | dict):
            raise Fault(
                ("batch_size",),
                f'expected a number, "auto" or a range "1:8", found {describe(value)}',
            )
        self._report.applied["batch_size"] = "any" if size == -1 else text
        return size

    def _shapes(self, value: Any) -> dict[str, tuple[Dimension, ...]]:
        named = self._by_tensor("shape", value)
        return {name: self._shape(given) for name, given in named.items()}

    def _by_tensor(self, key: str, value: Any) -> dict[str, Any]:
        """Return the values of a key by tensor. A value without a tensor's name has the name ""."""
        value = self._decoded(value)
        if value is None:
            return {}
        named = value if isinstance(value, dict) else {"": value}
        shown = ", ".join(f"{name} {layout}".strip() for name, layout in named.items())
        self._report.applied[key] = shown
        return named

    def _shape(self, given: Any) -> tuple[Dimension, ...]:
        """Return a shape. "auto" becomes an empty shape, which leaves every size open."""
        if given == "auto":
            return ()
        parts: list[Any] = []
        if isinstance(given, str) and (inner := _SHAPE.fullmatch(given.strip())):
            parts = [part.strip() for part in inner[1].split(",")]
            parts = [int(part) if _is_whole(part) else part for part in parts]
        elif isinstance(given, list):
            parts = given
        sizes = [read_dimension(part) for part in parts[: _MAX_RANK + 1]]
        if not sizes or None in sizes or len(sizes) > _MAX_RANK:
            raise Fault(
                ("shape",),
                f'expected "auto" or a shape such as "(1,3,224,224)" with numbers from 1 to {LARGEST_SIZE}, '
                f'-1 and ranges "100:200", found {describe(given)}',
            )
        return tuple(size for size in sizes if size is not None)

    def _layouts(self, value: Any) -> dict[str, str]:
        if value in ("", "auto"):
            return {}
        named = self._by_tensor("layout", value)
        for layout in named.values():
            if not isinstance(layout, str) or not _LAYOUT.fullmatch(layout):
                raise Fault(
                    ("layout",), f'expected a layout such as "NHWC:NCHW", found {describe(layout)}'
                )
        return named

    def _properties(self, value: Any) -> tuple[dict[str, Any], int]:
        """Return the properties for OpenVINO's CPU plugin, and the number of instances (NUM_STREAMS)."""
        value = self._decoded(value)
        if value is None:
            return {}, 1
        if not isinstance(value, dict):
            raise Fault(("plugin_config",), f"expected keys and values, found {describe(value)}")
        properties: dict[str, Any] = {}
        instances = 1
        for key, item in value.items():
            shown = f"plugin_config.{key[:64]}"
            if not isinstance(item, str | int | float):
                raise Fault(
                    ("plugin_config",),
                    f"{key[:64]}: expected a text or a number, found {describe(item)}",
                )
            if key == "NUM_STREAMS":
                if _is_whole(str(item)) and 1 <= int(item) <= MOST_INSTANCES:
                    instances = int(item)
                    self._report.applied[shown] = f"{instances} instances"
                else:
                    self._report.ignored[shown] = "the model has one instance"
                continue
            properties[key] = item
            self._report.applied[shown] = "as OpenVINO's CPU plugin takes it"
        return properties, instances

    def _version_policy(self, value: Any) -> VersionPolicy:
        value = self._decoded(value)
        if value is None:
            return VersionPolicy()
        path = (*self._at, "model_version_policy")
        if not isinstance(value, dict) or len(value) != 1:
            raise Fault(
                ("model_version_policy",),
                f"expected latest, all or specific, found {describe(value)}",
            )
        keys = self._document.convert(VersionPolicyKeys, value, path)
        self._report.applied["model_version_policy"] = msgspec.json.encode(value).decode()[:256]
        if keys.specific is not None:
            return VersionPolicy(specific=tuple(dict.fromkeys(keys.specific.versions)))
        return VersionPolicy(latest=keys.latest.num_versions if keys.latest is not None else 0)

    def _decoded(self, value: Any) -> Any:
        """Return a value, decoded if it is a JSON object in a string, as on OVMS's command line."""
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                return msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                return value
        return value


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,10}", text) is not None


def _model_files(folder: Path) -> list[Path]:
    """Return the model files of the first kind that the folder has."""
    for kind in _KINDS:
        found = sorted(file for file in folder.glob(kind) if file.is_file())
        if found:
            return found
    return []


def _model_file(folder: Path, root: Path) -> Path:
    """Return the model file of a version, which must be within the model's folder."""
    found = _model_files(folder)
    if len(found) > 1:
        raise ConfigError(f"{folder}: has several models: {', '.join(file.name for file in found)}")
    if not found:
        others = sorted(file.name for file in folder.iterdir() if file.suffix in _OTHERS)
        held = f"; {', '.join(others[:4])} is not served" if others else ""
        raise ConfigError(
            f"{folder}: holds no .xml, .onnx or .tflite file and no saved_model.pb{held}"
        )
    if not found[0].resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{found[0]} {LEADS_OUT}")
    return found[0]


def _names(path: Path) -> dict[str, str]:
    """Return the clients' names of tensors in a mapping_config.json, by the names in the model file."""
    document = read_json(path)
    keys = document.convert(NameMappings, document.value)
    for side in (keys.inputs, keys.outputs):
        if len(set(side.values())) != len(side):
            document.fail((), "gives two tensors one name")
    return {**keys.inputs, **keys.outputs}
