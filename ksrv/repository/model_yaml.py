"""`model.yaml`: one function that turns a model's folder into checked settings.

Strategy: `Document` keeps the lines, `Fields` hands out typed values and refuses what is left over,
and the functions below know what each key means. The image section and its rules are in
`image_section.py`. Every error names file, line and key.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ksrv._native.tensor import datatype
from ksrv.handlers.compile import CompileError, read_plan
from ksrv.repository.image_section import default_image, read_image
from ksrv.repository.labels import LabelError, read_labels
from ksrv.repository.torchserve.detection import as_torchserve
from ksrv.repository.yaml_document import ConfigError, Document, Fields, describe
from ksrv.source import Batching, ModelConfig, VersionPolicy
from ksrv.spec import Dimension, TensorSpec

__all__ = [
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
    "config.pbtxt": f"it holds settings of Triton's; write them into {CONFIG_NAME}",
}
"""Files that look like settings, with what to do about them."""
BUILT_IN_HANDLERS = ("image_classifier", "image_segmenter", "object_detector", "text_classifier")
MODEL_SUFFIXES = (".pt", ".pth", ".safetensors", ".pt2", ".so", ".onnx")
STATE_SUFFIXES = (".pt", ".pth", ".safetensors")

_KEYS = (
    "handler",
    "model",
    "class",
    "device",
    "inputs",
    "outputs",
    "labels",
    "batching",
    "executor",
    "retry",
    "instances",
    "threads",
    "timeout_ms",
    "run_timeout_ms",
    "start_timeout_ms",
    "queue_size",
    "warmup",
    "version_policy",
    "parameters",
    "pt2",
    "envelope",
    "env",
    "matmul_precision",
)
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,4})?|mps|xpu(:[0-9]{1,4})?|xla")
_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?|[A-Za-z_]\w*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST = 2**31 - 1


def unread_settings(folders: Sequence[Path]) -> str:
    """Return a sentence on the files of a model's folders that look like settings and are none.

    Args:
        folders: The folders.

    Returns:
        "model.yml is not read: call it model.yaml", or "" where there is no such file.
    """
    found = {name for folder in folders for name in UNREAD_NAMES if (folder / name).is_file()}
    return "; ".join(f"{name} is not read: {UNREAD_NAMES[name]}" for name in sorted(found))


def load_version_policy(folder: Path) -> VersionPolicy:
    """Return which versions of a model are served; a version's own `model.yaml` has no say.

    Args:
        folder: The model's folder.

    Raises:
        ConfigError: The folder's `model.yaml` cannot be read, or its policy is none.
    """
    path = folder / CONFIG_NAME
    if not path.is_file():
        return VersionPolicy()
    document = Document.read(path)
    return _read_version_policy(Fields(document, {} if document.value is None else document.value))


def load_model_config(folder: Path, version_folder: Path | None = None) -> ModelConfig:
    """Return the settings of one model, or of one of its versions.

    The version folder's own `model.yaml` wins entirely over the one in the model's folder. Files
    are looked for in the version folder first and in the model's folder after it. A folder without
    a `model.yaml` is served by its `handler.py`, or by the only model file in it.

    Args:
        folder: The model's folder.
        version_folder: The folder of the version, or None for an unversioned model.

    Returns:
        The checked settings; paths in them are absolute.

    Raises:
        ConfigError: Something is wrong; the text names file, line and key.
    """
    folders = [folder] if version_folder is None else [version_folder, folder]
    files = _Files(folder, folders)
    path = next((at / CONFIG_NAME for at in folders if (at / CONFIG_NAME).is_file()), None)
    if path is None:
        config = _without_config(folders)
        return as_torchserve(config, folders[0].absolute(), folder.absolute(), False)
    document = Document.read(path)
    fields = Fields(document, {} if document.value is None else document.value)
    if "torchserve" in fields:
        from ksrv.repository.torchserve.unpacked import (
            read_unpacked,  # stands on this module's errors
        )

        readers = {
            "device": _read_device,
            "batching": lambda found: _read_batching(found, ()),
            "env": _read_environment,
        }
        return read_unpacked(fields, folders[0].absolute(), readers)
    fields.only(*_KEYS)
    config = _read(fields, files)
    named = "executor" in fields
    return as_torchserve(config, folders[0].absolute(), folder.absolute(), named)


def _without_config(folders: Sequence[Path]) -> ModelConfig:
    for folder in folders:
        models = sorted(
            entry
            for entry in folder.iterdir()
            if entry.suffix in (".pt", ".pt2", ".onnx") and entry.is_file()
        )
        if (folder / "handler.py").is_file():
            model = str(models[0]) if len(models) == 1 else None
            return ModelConfig(handler=str(folder / "handler.py"), model=model)
        if len(models) == 1:
            return ModelConfig(model=str(models[0]))
        if models:
            names = ", ".join(entry.name for entry in models)
            raise ConfigError(
                f"{folder}: holds several model files ({names}) and no {CONFIG_NAME} that names one."
            )
    unread = unread_settings(folders)
    raise ConfigError(
        f"{folders[-1]}: holds no {CONFIG_NAME}, no handler.py and no model file"
        f"{f' ({unread})' if unread else ''}."
    )


class _Files:
    """Finds the files that settings name, none of them outside the model's folder."""

    def __init__(self, root: Path, folders: Sequence[Path]) -> None:
        self._root = root.resolve()
        self._folders = folders

    def find(self, fields: Fields, key: str, name: str) -> Path:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name:
            fields.fail(key, f"{name!r} leaves the model's folder; name a file inside it.")
        paths = [folder / relative for folder in self._folders]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            looked = " or ".join(str(folder) for folder in self._folders)
            fields.fail(key, f"the file {name!r} is not in {looked}.")
        if not path.resolve().is_relative_to(self._root):
            fields.fail(key, f"{name!r} leads out of the model's folder.")
        return path.absolute()

    def target(self, fields: Fields, key: str, value: str) -> str:
        """Resolve `FILE.py[:NAME]`; a dotted path comes back as it is."""
        file, colon, name = value.partition(":")
        if file.endswith(".py"):
            if colon and not _NAME.fullmatch(name):
                fields.fail(key, f"expected FILE.py:NAME, found {value!r}.")
            return f"{self.find(fields, key, file)}{colon}{name}"
        if not _DOTTED.fullmatch(value):
            fields.fail(key, f"expected FILE.py[:NAME] or package.module:NAME, found {value!r}.")
        return value


def _read(fields: Fields, files: _Files) -> ModelConfig:
    handler, model, model_class = _read_model(fields, files)
    device = _read_device(fields)
    inputs = _read_tensors(fields, "inputs")
    outputs = _read_tensors(fields, "outputs")
    return ModelConfig(
        handler=handler,
        model=model,
        model_class=model_class,
        device=device,
        inputs=inputs,
        outputs=outputs,
        labels=_read_label_file(fields, files),
        batching=_read_batching(fields, inputs),
        executor=fields.choice("executor", "inline", ("inline", "process")),
        retry=fields.flag("retry", True),
        instances=fields.integer("instances", 1, 1, 1024),
        threads=fields.integer("threads", 0, 0, 4096),
        timeout_ms=fields.integer("timeout_ms", 30_000, 1, _LARGEST),
        run_timeout_ms=fields.integer("run_timeout_ms", 0, 0, _LARGEST),
        start_timeout_s=fields.integer("start_timeout_ms", 120_000, 1, _LARGEST) / 1000,
        queue_size=fields.integer("queue_size", 100, 1, 1_000_000),
        warmup=_read_warmup(fields, files),
        version_policy=_read_version_policy(fields),
        parameters=_read_parameters(fields),
        pt2=_read_pt2(fields),
        envelope=fields.text("envelope"),
        env=_read_environment(fields),
        matmul_precision=fields.choice("matmul_precision", None, ("highest", "high", "medium")),
    )


def _read_device(fields: Fields) -> str:
    device = fields.text("device") or "auto"
    if not _DEVICE.fullmatch(device):
        fields.fail(
            "device", f"expected auto, cpu, cuda, cuda:N, mps, xpu or xla, found {device!r}."
        )
    return device


def _read_model(fields: Fields, files: _Files) -> tuple[str | None, str | None, str | None]:
    handler = fields.text("handler")
    if handler is not None and handler not in BUILT_IN_HANDLERS:
        if "." not in handler and ":" not in handler:
            fields.fail(
                "handler",
                f"expected FILE.py[:NAME], package.module:NAME or one of "
                f"{', '.join(BUILT_IN_HANDLERS)}, found {handler!r}.",
            )
        handler = files.target(fields, "handler", handler)
    name = fields.text("model")
    model = None
    if name is not None:
        suffix = Path(name).suffix
        if suffix not in MODEL_SUFFIXES:
            fields.fail(
                "model",
                f"{name!r} has the suffix {suffix!r}; model files end with "
                f"{', '.join(MODEL_SUFFIXES)}.",
            )
        model = str(files.find(fields, "model", name))
    model_class = fields.text("class")
    if model_class is not None:
        model_class = files.target(fields, "class", model_class)
        if ":" not in model_class:
            fields.fail("class", f"expected FILE.py:NAME, found {model_class!r}.")
        if model is not None and Path(model).suffix not in STATE_SUFFIXES:
            fields.fail("class", f"{Path(model).name} is no state_dict, so it fills no class.")
    elif model is not None and Path(model).suffix in (".pth", ".safetensors"):
        fields.fail(
            "model", f"{Path(model).name} is a state_dict; name the module that it fills in class:."
        )
    if handler is None and model is None and model_class is None:
        fields.document.fail((), "name a handler: or a model:.")
    return handler, model, model_class


def _read_tensors(fields: Fields, key: str) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    known = ("name", "datatype", "shape", *(("image",) if key == "inputs" else ()))
    for section in fields.sections(key):
        section.only(*known)
        name = section.text("name")
        if name is None:
            section.fail("name", "a tensor needs a name.")
        if any(spec.name == name for spec in specs):
            section.fail("name", f"{name!r} is declared twice.")
        kind = section.text("datatype")
        if kind is None:
            section.fail("datatype", "a tensor needs a datatype.")
        if not datatype.is_datatype(kind):
            section.choice("datatype", None, datatype.NAMES)
        shape = _read_shape(section)
        image = None
        if key == "inputs":
            below = section.section("image")
            image = default_image(kind, shape) if below is None else read_image(below, kind, shape)
        specs.append(TensorSpec(name, kind, shape, image))
    return tuple(specs)


def _read_shape(section: Fields) -> tuple[Dimension, ...]:
    value = section.value("shape")
    if not isinstance(value, list):
        section.fail("shape", f"expected a list of dimensions, found {describe(value)}.")
    if len(value) > datatype.MAX_RANK:
        section.fail("shape", f"has {len(value)} dimensions; at most {datatype.MAX_RANK} are read.")
    shape: list[Dimension] = []
    for index, entry in enumerate(value):
        ends = _RANGE.fullmatch(entry) if isinstance(entry, str) else None
        if ends:
            low, high = int(ends[1]), int(ends[2])
            if 0 < low <= high <= _LARGEST:
                shape.append((low, high))
                continue
        elif (
            isinstance(entry, int) and entry is not True and (entry == -1 or 0 < entry <= _LARGEST)
        ):
            shape.append(entry)
            continue
        section.document.fail(
            (*section.path, "shape", index),
            f'expected a positive number, -1 or a range "100:200", found {describe(entry)}.',
        )
    return tuple(shape)


def _read_label_file(fields: Fields, files: _Files) -> tuple[str, ...] | None:
    name = fields.text("labels")
    if name is None:
        return None
    try:
        return read_labels(files.find(fields, "labels", name))
    except LabelError as error:
        fields.fail("labels", f"{name}: {error}.")


def _read_batching(fields: Fields, inputs: Sequence[TensorSpec]) -> Batching | None:
    section = fields.section("batching")
    if section is None:
        return None
    section.only("max_batch_size", "max_delay_ms", "split")
    if "max_batch_size" not in section:
        section.fail("max_batch_size", "batching needs a max_batch_size.")
    batching = Batching(
        max_batch_size=section.integer("max_batch_size", 1, 1, 1_000_000),
        max_delay_ms=section.number("max_delay_ms", 0.0, 0.0, 3_600_000.0),
        split=section.flag("split", False),
    )
    fixed = next((spec for spec in inputs if not spec.batched), None)
    if fixed is not None:
        fields.fail(
            "batching",
            f"the input {fixed.name!r} has no batch dimension; its shape must begin with -1.",
        )
    return batching


def _read_warmup(fields: Fields, files: _Files) -> bool | tuple[str, ...]:
    if isinstance(fields.value("warmup"), list):
        return tuple(
            str(files.find(fields, "warmup", name)) for name in fields.texts("warmup")
        ) or fields.fail("warmup", "expected true, false or a list of sample files.")
    return fields.flag("warmup", True)


def _read_version_policy(fields: Fields) -> VersionPolicy:
    value = fields.value("version_policy")
    if value is None:
        return VersionPolicy()
    if value == "all":
        return VersionPolicy(latest=0)
    expected = "expected all, {latest: N} or {specific: [N, ...]}"
    if not isinstance(value, dict) or len(value) > 1:
        fields.fail("version_policy", f"{expected}, found {describe(value)}.")
    section = Fields(fields.document, value, (*fields.path, "version_policy"))
    section.only("latest", "specific")
    latest = section.integer("latest", 1, 1, 1_000_000)
    specific: tuple[int, ...] = ()
    numbers = section.value("specific")
    if numbers is not None:
        if not isinstance(numbers, list) or not numbers or not all(map(_is_version, numbers)):
            section.fail("specific", f"{expected}, found {describe(numbers)}.")
        specific = tuple(dict.fromkeys(numbers))
    return VersionPolicy(latest=latest, specific=specific)


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18


def _read_parameters(fields: Fields) -> dict[str, Any]:
    value = fields.value("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        fields.fail("parameters", f"expected keys and values, found {describe(value)}.")
    _check_plain(fields, value, (*fields.path, "parameters"))
    return value


def _check_plain(fields: Fields, value: object, path: tuple[str | int, ...]) -> None:
    """Refuse what JSON cannot carry to a handler's process."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                fields.document.fail((*path, str(key)), "a key here is a text; put it in quotes.")
            _check_plain(fields, entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_plain(fields, entry, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        fields.document.fail(path, f"expected a finite number, found {value}.")


def _read_pt2(fields: Fields) -> dict[str, Any] | str | None:
    value = fields.value("pt2")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict):
        fields.fail("pt2", f"expected keys and values, found {describe(value)}.")
    _check_plain(fields, value, (*fields.path, "pt2"))
    try:
        read_plan(value)
    except CompileError as error:
        fields.document.fail((*fields.path, "pt2", *error.key), f"{error.message}.")
    return value


def _read_environment(fields: Fields) -> dict[str, str]:
    value = fields.value("env")
    if value is None:
        return {}
    if not isinstance(value, dict):
        fields.fail("env", f"expected variables and their values, found {describe(value)}.")
    section = Fields(fields.document, value, (*fields.path, "env"))
    variables: dict[str, str] = {}
    for name, entry in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            section.fail(str(name), "is not a variable's name.")
        if (
            isinstance(entry, bool)
            or not isinstance(entry, (str, int, float))
            or "\0" in str(entry)
        ):
            section.fail(name, f"expected a text or a number, found {describe(entry)}.")
        variables[name] = str(entry)
    return variables
