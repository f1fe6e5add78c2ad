"""`model.yaml`: one function that turns a model's folder into checked settings.

Strategy: `Document` keeps the lines and converts the values to the structs of `model_keys.py`, and
the functions below check which keys fit each other and which files exist. The rules of the image
section are in `image_section.py`. Every error names file, line and key.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ksrv.compile_plan import CompileError, read_plan
from ksrv.image_rules import default_image
from ksrv.repository.handler_code import HandlerCode, installed_file
from ksrv.repository.image_section import read_image, read_output_image
from ksrv.repository.labels import LabelError, read_labels
from ksrv.repository.model_keys import (
    BUILT_IN_HANDLERS,
    BatchingSection,
    InputSection,
    ModelKeys,
    OutputSection,
    Section,
    SequencesSection,
    SharedKeys,
    TensorSection,
    UnpackedKeys,
    VersionPolicyKey,
    VersionSection,
)
from ksrv.repository.torchserve.detection import as_torchserve
from ksrv.repository.torchserve.unpacked import read_unpacked
from ksrv.repository.yaml_document import ConfigError, Document, describe
from ksrv.source import Batching, Cache, ModelConfig, VersionPolicy
from ksrv.spec import SequenceLimits, TensorSpec, whole

__all__ = [
    "BARE_SUFFIXES",
    "CONFIG_NAME",
    "MODEL_SUFFIXES",
    "ConfigError",
    "ModelConfig",
    "load_model_config",
    "load_version_policy",
]

CONFIG_NAME = "model.yaml"
UNREAD_NAMES = {
    "model.yml": f"call it {CONFIG_NAME}",
    "config.pbtxt": f"beside {CONFIG_NAME} or handler.py those hold; take them away to serve it",
}
"""Files that look like settings, with what to do about them."""
MODEL_SUFFIXES = (".pt", ".pth", ".safetensors", ".pt2", ".so", ".onnx", ".xml", ".tflite", ".pb")
BARE_SUFFIXES = (".pt", ".pt2", ".onnx", ".xml", ".tflite")
"""Files that are models by themselves: they need no `class:`."""
SAVED_MODEL = "saved_model.pb"
"""The file of TensorFlow that is a model by itself in a folder of its own, which may hold its variables."""
TENSORFLOW_SUFFIXES = (".tflite", ".pb")
STATE_SUFFIXES = (".pt", ".pth", ".safetensors")

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?|[A-Za-z_]\w*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def unread_settings(folders: Sequence[Path]) -> str:
    """Return a sentence on the files of a model's folders that look like settings and are none.

    Returns:
        "model.yml is not read: call it model.yaml", or "" where there is no such file.
    """
    found = {name for folder in folders for name in UNREAD_NAMES if (folder / name).is_file()}
    return "; ".join(f"{name} is not read: {UNREAD_NAMES[name]}" for name in sorted(found))


def load_version_policy(folder: Path) -> VersionPolicy:
    """Return which versions of a model are served; a version's own `model.yaml` has no say.

    Raises:
        ConfigError: The folder's `model.yaml` cannot be read, or its policy is none.
    """
    path = folder / CONFIG_NAME
    if not path.is_file():
        return VersionPolicy()
    document = Document.read(path)
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        document.fail((), f"expected keys and values, found {describe(value)}")
    keys = document.convert(_PolicyKey, {"version_policy": value.get("version_policy")})
    return _version_policy(document, keys.version_policy)


def load_model_config(folder: Path, version_folder: Path | None = None) -> ModelConfig:
    """Return the settings of one model, or of one of its versions.

    The version folder's own `model.yaml` wins entirely over the one in the model's folder. Files
    are looked for in the version folder first and in the model's folder after it. A folder without
    a `model.yaml` is served by its `handler.py`, or by the only model file in it.

    Args:
        version_folder: The folder of the version, or None for an unversioned model.

    Returns:
        The checked settings; paths in them are absolute.

    Raises:
        ConfigError: Something is wrong; the text names file, line and key.
    """
    folders = [folder] if version_folder is None else [version_folder, folder]
    path = next((at / CONFIG_NAME for at in folders if (at / CONFIG_NAME).is_file()), None)
    if path is None:
        document = _without_config(folders)
    else:
        document = Document.read(path)
        document.value = {} if document.value is None else document.value
    value = document.value
    if isinstance(value, dict) and value.get("torchserve") is not None:
        keys = document.convert(UnpackedKeys, value)
        return read_unpacked(document, keys, shared_settings(document, keys), folders[0].absolute())
    # What stands in a folder without a model.yaml was named by nobody, and may be a link.
    files = _Files(document, folder if path is not None else Path("/"), folders)
    document.convert(ModelKeys, value)
    _take_decorated(document, files)
    config = _read(document, document.convert(ModelKeys, value), files)
    named = value.get("executor") is not None
    found = as_torchserve(config, folders[0].absolute(), folder.absolute(), named)
    if found.sequences is not None and found.runner != config.runner:
        document.fail(
            ("sequences",), "a handler that is written for TorchServe serves no sequences"
        )
    return found


def read_model_keys(document: Document, keys: ModelKeys, folder: Path) -> ModelConfig:
    """Return the settings of a model without a model.yaml of its own.

    Args:
        document: Where the keys were read.

    Raises:
        ConfigError: Keys do not fit each other, or a file is missing.
    """
    return _read(document, keys, _Files(document, folder, [folder]))


def _take_decorated(document: Document, files: "_Files") -> None:
    """Fill the keys that a model.yaml leaves out with those of the handler's `@settings`."""
    handler = document.value.get("handler")
    if handler is None or not ("." in handler or ":" in handler):
        return
    target, _, name = str(files.target("handler", handler)).partition(":")
    if target.endswith(".py"):
        file: Path | None = Path(target)
    else:
        file = installed_file(target)
        if file is None and not name:
            target, _, name = target.rpartition(".")
            file = installed_file(target)
    if file is None:
        return  # loading says that there is no such module
    try:
        code = HandlerCode.read(file, files.folders)
    except ConfigError:
        return  # loading says what is wrong with the file
    if not name:
        name = code.only_decorated()
        if name:
            document.value["handler"] = f"{handler}:{name}"
    document.take(code.settings(name), fill=True)


def _without_config(folders: Sequence[Path]) -> Document:
    """Return the keys of a folder that has no model.yaml: those of its handler.py or its model file."""
    for folder in folders:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file())
        models = [entry for entry in files if entry.suffix in BARE_SUFFIXES]
        models += [entry for entry in files if entry.name == SAVED_MODEL]
        if (folder / "handler.py").is_file():
            # A handler may run TensorFlow's files by TensorFlow itself; model: names one for OpenVINO.
            own = [entry for entry in models if entry.suffix not in TENSORFLOW_SUFFIXES]
            keys = {"handler": "handler.py"} | ({"model": own[0].name} if len(own) == 1 else {})
            return Document.of(folder / "handler.py", keys, {})
        if len(models) == 1:
            return Document.of(folder, {"model": models[0].name}, {})
        if models:
            names = ", ".join(entry.name for entry in models)
            raise ConfigError(
                f"{folder}: holds several model files ({names}) and no {CONFIG_NAME} that names one"
            )
    unread = unread_settings(folders)
    if not unread and any((folder / "model.py").is_file() for folder in folders):
        unread = (
            "model.py is not read: one of Triton's Python backend lies in a version folder, such as "
            "1/model.py, and has a class TritonPythonModel"
        )
    raise ConfigError(
        f"{folders[-1]}: holds no {CONFIG_NAME}, no handler.py and no model file"
        f"{f' ({unread})' if unread else ''}"
    )


class _Files:
    """Finds the files that settings name, none of them outside the model's folder."""

    def __init__(self, document: Document, root: Path, folders: Sequence[Path]) -> None:
        self._document = document
        self._root = root.resolve()
        self.folders = folders

    def find(self, key: str, name: str) -> Path:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name:
            self._fail(key, f"{name!r} leaves the model's folder; name a file inside it")
        paths = [folder / relative for folder in self.folders]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            looked = " or ".join(str(folder) for folder in self.folders)
            self._fail(key, f"the file {name!r} is not in {looked}")
        if not path.resolve().is_relative_to(self._root):
            self._fail(key, f"{name!r} leads out of the model's folder")
        return path.absolute()

    def target(self, key: str, value: str) -> str:
        """Resolve `FILE.py[:NAME]`; a dotted path comes back as it is."""
        file, colon, name = value.partition(":")
        if file.endswith(".py"):
            if colon and not _NAME.fullmatch(name):
                self._fail(key, f"expected FILE.py:NAME, found {value!r}")
            return f"{self.find(key, file)}{colon}{name}"
        if not _DOTTED.fullmatch(value):
            self._fail(key, f"expected FILE.py[:NAME] or package.module:NAME, found {value!r}")
        return value

    def _fail(self, key: str, message: str) -> NoReturn:
        self._document.fail((key,), message)


class _PolicyKey(Section):
    version_policy: VersionPolicyKey | None = None


_COPIED = (
    "device",
    "retry",
    "instances",
    "threads",
    "timeout_ms",
    "run_timeout_ms",
    "queue_size",
    "rate_limit",
    "max_concurrency",
    "envelope",
)


def shared_settings(document: Document, keys: SharedKeys) -> dict[str, Any]:
    """Return the settings that mean the same in every model.yaml, as far as they are given.

    Returns:
        Values by the names of `ModelConfig`'s fields.

    Raises:
        ConfigError: A variable of `env:` has no name or no value.
    """
    settings = {name: getattr(keys, name) for name in _COPIED}
    if keys.start_timeout_ms is not None:
        settings["start_timeout_s"] = keys.start_timeout_ms / 1000
    if keys.batching is True:
        document.fail(("batching",), "expected off, or keys and values such as {max_batch_size: 8}")
    if isinstance(keys.batching, BatchingSection):
        settings["batching"] = Batching(
            max_batch_size=keys.batching.max_batch_size,
            max_delay_ms=float(keys.batching.max_delay_ms or 0.0),
            split=bool(keys.batching.split),
        )
    elif keys.batching is not None:
        settings["counts_rows"] = False
    if keys.env is not None:
        settings["env"] = _environment(document, keys.env)
    return {name: value for name, value in settings.items() if value is not None}


def _read(document: Document, keys: ModelKeys, files: _Files) -> ModelConfig:
    handler, model, model_class = _read_model(document, keys, files)
    inputs = _tensors(document, "inputs", keys.inputs or ())
    outputs = _tensors(document, "outputs", keys.outputs or ())
    settings = shared_settings(document, keys)
    if not settings.get("counts_rows", True):
        inputs, outputs = tuple(map(whole, inputs)), tuple(map(whole, outputs))
    fixed = next((spec for spec in inputs if not spec.batched), None)
    if "batching" in settings and fixed is not None:
        document.fail(
            ("batching",),
            f"the input {fixed.name!r} has no batch dimension; its shape must begin with -1",
        )
    if keys.labels is not None:
        settings["labels"] = _labels(document, keys.labels, files)
    if isinstance(keys.warmup, list):
        settings["warmup"] = tuple(str(files.find("warmup", name)) for name in keys.warmup)
    elif keys.warmup is not None:
        settings["warmup"] = keys.warmup
    if keys.cache is not None:
        given = {name: getattr(keys.cache, name) for name in ("entries", "bytes", "ttl_s")}
        known = {name: value for name, value in given.items() if value is not None}
        if "ttl_s" in known:
            known["ttl_s"] = float(known["ttl_s"])
        settings["cache"] = Cache(**known)
    if keys.sequences is not None:
        settings["sequences"] = _sequences(document, keys, keys.sequences)
    for name in ("role", "executor", "cuda_graphs", "matmul_precision", "concurrent_batches"):
        if getattr(keys, name) is not None:
            settings[name] = getattr(keys, name)
    if keys.python is not None:
        settings["python"] = keys.python
    if keys.requirements is not None:
        settings["requirements"] = str(files.find("requirements", keys.requirements))
    for name in ("python", "requirements"):
        if name in settings and keys.executor != "process":
            document.fail(
                (name,), "is for handlers in processes of their own; add executor: process"
            )
    for name in ("parameters", "pt2"):
        _check_portable(document, getattr(keys, name), (name,))
    return ModelConfig(
        handler=handler,
        model=model,
        model_class=model_class,
        inputs=inputs,
        outputs=outputs,
        version_policy=_version_policy(document, keys.version_policy),
        parameters=keys.parameters or {},
        pt2=_pt2(document, keys.pt2),
        given=tuple(document.value),
        **settings,
    )


def _sequences(document: Document, keys: ModelKeys, section: SequencesSection) -> SequenceLimits:
    if isinstance(keys.batching, BatchingSection) and keys.batching.split:
        document.fail(("batching", "split"), "a request of a sequence is not split")
    given = {name: getattr(section, name) for name in ("max", "idle_timeout_ms")}
    return SequenceLimits(**{name: value for name, value in given.items() if value is not None})


def _read_model(
    document: Document, keys: ModelKeys, files: _Files
) -> tuple[str | None, str | None, str | None]:
    handler = keys.handler
    if handler is not None and handler not in BUILT_IN_HANDLERS:
        if "." not in handler and ":" not in handler:
            document.fail(
                ("handler",),
                f"expected FILE.py[:NAME], package.module:NAME or one of "
                f"{', '.join(BUILT_IN_HANDLERS)}, found {handler!r}",
            )
        handler = files.target("handler", handler)
    model = None
    if keys.model is not None:
        suffix = Path(keys.model).suffix
        if suffix not in MODEL_SUFFIXES:
            document.fail(
                ("model",),
                f"{keys.model!r} has the suffix {suffix!r}; model files end with "
                f"{', '.join(MODEL_SUFFIXES)}",
            )
        model = str(files.find("model", keys.model))
    model_class = keys.model_class
    if model_class is not None:
        model_class = files.target("class", model_class)
        if ":" not in model_class:
            document.fail(("class",), f"expected FILE.py:NAME, found {model_class!r}")
        if model is not None and Path(model).suffix not in STATE_SUFFIXES:
            document.fail(("class",), f"{Path(model).name} is no state_dict, so it fills no class")
    elif model is not None and Path(model).suffix in (".pth", ".safetensors"):
        document.fail(
            ("model",),
            f"{Path(model).name} holds weights only (a state_dict); add class: net.py:Net, the class or function that "
            f"builds the network",
        )
    if handler is None and model is None and model_class is None:
        document.fail((), "name a handler: or a model:")
    return handler, model, model_class


def _tensors(
    document: Document, key: str, sections: Sequence[TensorSection]
) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for index, section in enumerate(sections):
        if any(spec.name == section.name for spec in specs):
            document.fail((key, index, "name"), f"{section.name!r} is declared twice")
        kind = str(section.datatype)
        shape = tuple(size.value for size in section.shape)
        path = (key, index, "image")
        if isinstance(section, InputSection):
            image = default_image(kind, shape)
            if section.image is not None:
                image = read_image(document, path, section.image, kind, shape)
            specs.append(TensorSpec(section.name, kind, shape, image, optional=section.optional))
        else:
            encoded = None
            if isinstance(section, OutputSection) and section.image is not None:
                encoded = read_output_image(document, path, section.image, kind, shape)
            specs.append(TensorSpec(section.name, kind, shape, output_image=encoded))
    return tuple(specs)


def _labels(document: Document, name: str, files: _Files) -> tuple[str, ...]:
    try:
        return read_labels(files.find("labels", name))
    except LabelError as error:
        document.fail(("labels",), f"{name}: {error}")


def _version_policy(document: Document, policy: str | VersionSection | None) -> VersionPolicy:
    if policy is None:
        return VersionPolicy()
    if isinstance(policy, str):
        return VersionPolicy(latest=0)
    if policy.latest is not None and policy.specific is not None:
        document.fail(("version_policy",), "latest and specific exclude each other")
    return VersionPolicy(
        latest=1 if policy.latest is None else policy.latest,
        specific=tuple(dict.fromkeys(policy.specific or ())),
    )


def _check_portable(document: Document, value: object, path: tuple[str | int, ...]) -> None:
    """Refuse values that JSON cannot carry to a handler's process."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                document.fail((*path, str(key)), "a key here is a text; put it in quotes")
            _check_portable(document, entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_portable(document, entry, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        document.fail(path, f"expected a finite number, found {value}")


def _pt2(document: Document, section: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
    try:
        read_plan(section)
    except CompileError as error:
        document.fail(("pt2", *error.key), error.message)
    return section


def _environment(document: Document, given: dict[Any, Any]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            document.fail(("env", str(name)), "is not a variable's name")
        if (
            isinstance(value, bool)
            or not isinstance(value, (str, int, float))
            or "\0" in str(value)
        ):
            document.fail(("env", name), f"expected a text or a number, found {describe(value)}")
        variables[name] = str(value)
    return variables
