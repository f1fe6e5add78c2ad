"""Turns the keys of model.yaml into a checked `ModelConfig`: keys must fit each other, and files must exist.

`read_settings` is the main function. Each error is a `Fault` with the path of the key; the caller adds file and line
(`Document.naming_faults`).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from ksrv.errors import LEADS_OUT, did_you_mean
from ksrv.model.compile_plan import read_plan
from ksrv.model.config import (
    BUILT_IN_HANDLERS,
    CALLING_INSTANCES,
    JoinPolicy,
    ModelConfig,
    VersionPolicy,
)
from ksrv.model.fault import Fault
from ksrv.model.input_rules import default_image, with_lengths
from ksrv.model.postprocess import Ctc, Nms, PostprocessStep, problems
from ksrv.model.sounds import audio_problem
from ksrv.model.spec import AudioSpec, Padding, SequenceLimits, TensorSpec, file_problem, whole
from ksrv.repository.settings.image_section import read_image, read_output_image
from ksrv.repository.settings.keys import InputSection, OutputSection, TensorSection, given
from ksrv.repository.settings.labels import read_labels
from ksrv.repository.yaml_document import Document, describe

MODEL_SUFFIXES = (".pt", ".pth", ".safetensors", ".pt2", ".so", ".onnx", ".xml", ".tflite", ".pb")
STATE_SUFFIXES = (".pt", ".pth", ".safetensors")
"""The suffixes of files that may be a state_dict: weights without code."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?|[A-Za-z_]\w*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_model_keys(
    document: Document, keys: Any, folder: Path, suffixes: Iterable[str] = ()
) -> ModelConfig:
    """Return the settings of a model without a model.yaml, such as a handler file.

    Args:
        document: The document of the keys.
        keys: The keys, as a section.
        folder: The folder of the model's files.
        suffixes: The suffixes of model files of other formats.

    Raises:
        ConfigError: Keys do not fit each other, or a file is missing.
    """
    with document.naming_faults():
        return read_settings(keys, ModelFiles(folder, [folder], suffixes), tuple(document.value))


class ModelFiles:
    """Finds the files that settings name, none of them outside the model's folder.

    Args:
        suffixes: The suffixes of model files of other formats.
    """

    def __init__(self, root: Path, folders: Sequence[Path], suffixes: Iterable[str] = ()) -> None:
        self._root = root.resolve()
        self.folders = folders
        self.suffixes = (*MODEL_SUFFIXES, *suffixes)

    def find(self, key: str, name: str) -> Path:
        """Return the path of the file that a key names.

        Raises:
            Fault: The file does not exist, or is outside the model's folder.
        """
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name:
            raise Fault((key,), f"{name!r} leaves the model's folder; name a file inside it")
        paths = [folder / relative for folder in self.folders]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            looked = " or ".join(str(folder) for folder in self.folders)
            names = [
                file.name for folder in self.folders if folder.is_dir() for file in folder.iterdir()
            ]
            raise Fault((key,), f"the file {name!r} is not in {looked}{did_you_mean(name, names)}")
        if not path.resolve().is_relative_to(self._root):
            raise Fault((key,), f"{name!r} {LEADS_OUT}")
        return path.absolute()

    def target(self, key: str, value: str) -> str:
        """Return `FILE.py[:NAME]` with the path of the file; `package.module:NAME` is returned unchanged."""
        file, colon, name = value.partition(":")
        if file.endswith(".py"):
            if colon and not _NAME.fullmatch(name):
                raise Fault((key,), f"expected FILE.py:NAME, found {value!r}")
            return f"{self.find(key, file)}{colon}{name}"
        if not _DOTTED.fullmatch(value):
            raise Fault((key,), f"expected FILE.py[:NAME] or package.module:NAME, found {value!r}")
        return value


def shared_settings(keys: Any) -> dict[str, Any]:
    """Return the given settings that need no files. They also apply to a model.yaml with another server's archive.

    Returns:
        Values by the names of `ModelConfig`'s fields.

    Raises:
        Fault: A variable of `env:` has no name or no value.
    """
    settings = given(keys, ModelConfig)
    if keys.batching is True:
        raise Fault(("batching",), "expected off, or keys and values such as {max_batch_size: 8}")
    # `batching: off` is read as "off" or False. The default of get() is the class, for a missing key.
    if not isinstance(settings.get("batching", JoinPolicy), JoinPolicy | type):
        settings |= {"batching": None, "counts_rows": False}
    if "start_timeout_s" in settings:
        settings["start_timeout_s"] /= 1000  # the key is start_timeout_ms
    if "env" in settings:
        settings["env"] = _environment(settings["env"])
    return settings


def read_settings(keys: Any, files: ModelFiles, given: tuple[str, ...]) -> ModelConfig:
    """Return the settings that the keys of a model give.

    Args:
        files: Finds the files that the keys name.
        given: The names of the keys that were given.

    Raises:
        Fault: Keys do not fit each other, or a file is missing.
    """
    settings = shared_settings(keys)
    settings |= _read_model(keys, files)
    inputs = _tensors("inputs", keys.inputs or ())
    served = tuple(entry for entry in keys.outputs or () if isinstance(entry, str))
    outputs = () if served else _tensors("outputs", keys.outputs or ())
    _check_file_tensors(keys, served)
    if settings.get("state"):
        # Like the defaults of `sequences: {}`; without a sequence no state could be kept.
        settings.setdefault("sequences", SequenceLimits())
    if not settings.get("counts_rows", True):
        inputs, outputs = tuple(map(whole, inputs)), tuple(map(whole, outputs))
    # Inputs that are not declared may be in the model file, and may have lengths that the outputs name.
    inputs, outputs = with_lengths(inputs, outputs, complete=bool(inputs))
    fixed = next((spec for spec in inputs if not spec.batched), None)
    batching = settings.get("batching")
    if batching is not None and fixed is not None:
        raise Fault(
            ("batching",),
            f"the input {fixed.name!r} has no batch dimension; its shape must begin with -1",
        )
    if batching is not None and batching.split and "sequences" in settings:
        raise Fault(("batching", "split"), "a request of a sequence is not split")
    if "labels" in settings:
        settings["labels"] = read_labels(files.find("labels", settings["labels"]), ("labels",))
    if isinstance(settings.get("warmup"), tuple):
        found = [str(files.find("warmup", name)) for name in settings["warmup"]]
        settings["warmup"] = tuple(found)
    recording = settings.get("record")
    if recording is not None and not Path(recording.to).is_absolute():
        raise Fault(
            ("record", "to"),
            f"expected the absolute path of a folder, which begins with a slash, found {recording.to!r}",
        )
    if "python" in settings and keys.executor != "process":
        raise Fault(("python",), "is for handlers in separate processes; add executor: process")
    if "needs" in settings:
        settings |= _calling_settings(keys, settings)
    for name in ("parameters", "pt2", "constants"):
        _check_portable(settings.get(name), (name,))
    # Only to raise for a wrong form: `ksrv/handlers/compile.py` reads the section again.
    read_plan(settings.get("pt2"))
    if "postprocess" in settings:
        steps = enumerate(settings["postprocess"])
        settings["postprocess"] = tuple(_step(index, step, files) for index, step in steps)
    settings["version_policy"] = read_version_policy(keys.version_policy)
    settings["answered" if keys.postprocess else "served_outputs"] = served
    return ModelConfig(inputs=inputs, outputs=outputs, given=given, **settings)


def _step(index: int, written: PostprocessStep, files: ModelFiles) -> PostprocessStep:
    """Return a checked step of `postprocess:` with the path of its file, or with the characters of its alphabet."""
    path = ("postprocess", index)
    if len(written.given) != 1:
        found = ", ".join(name for name, _ in written.given) or "none"
        raise Fault(path, f"expected one name with keys, such as softmax: {{}}, found {found}")
    [(name, step)] = written.given
    for key, problem in problems(step):
        raise Fault((*path, name, key), problem)
    if isinstance(step, Nms) and step.anchors:
        step = structs.replace(step, anchors=str(files.find("postprocess", step.anchors)))
    if isinstance(step, Ctc):
        alphabet = str(step.alphabet)
        if alphabet.endswith(".txt"):
            file = files.find("postprocess", alphabet)
            step = structs.replace(
                step, alphabet=read_labels(file, (*path, name, "alphabet"), alphabet=True)
            )
        step = structs.replace(step, alphabet=tuple(step.alphabet))
    return structs.replace(written, **{name: step})


def _calling_settings(keys: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `needs` and `instances` of a handler that calls other models."""
    called = keys.needs
    if keys.handler is None or keys.handler in BUILT_IN_HANDLERS:
        raise Fault(("calls",), "is for a handler that calls other models; name it under handler:")
    for index, name in enumerate(called):
        if name in called[:index]:
            raise Fault(("calls", index), f"{name!r} is named twice")
    found: dict[str, Any] = {"needs": tuple((name, "") for name in called)}
    # An instance mostly waits for its calls. With several, the called models get the calls of many requests at once.
    has_weights = settings["model"] is not None or settings["model_class"] is not None
    if "instances" not in settings and not has_weights and keys.executor != "process":
        found["instances"] = CALLING_INSTANCES
    return found


def _check_file_tensors(keys: Any, served: Sequence[str]) -> None:
    """Check the keys that change the inputs and outputs of a model file.

    Args:
        served: The entries of `outputs:` that are names alone.
    """
    if served and len(served) != len(keys.outputs):
        raise Fault(
            ("outputs",),
            "some entries are names alone, and others have a datatype and a shape; write all in one form",
        )
    states = keys.state or ()
    for key, names in (
        ("outputs", served),
        ("state", [*(keys.constants or {}), *(state.input for state in states)]),
        ("state", [state.output for state in states]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Fault((key,), f"{twice!r} is named twice, here or in constants:")
    for key in ("rename", "constants", "state"):
        if getattr(keys, key) and keys.model is None:
            raise Fault((key,), "changes tensors of a model file; name the file under model:")
    if states and keys.sequences is not None and keys.sequences.several_rows:
        raise Fault(("sequences", "several_rows"), "a model with state: takes one row at a time")
    if states and keys.cuda_graphs:
        raise Fault(("cuda_graphs",), "the launches of a model with state: are not recorded")


def _read_model(keys: Any, files: ModelFiles) -> dict[str, str | None]:
    """Return the settings `handler`, `model` and `model_class`, with the paths of their files."""
    handler = keys.handler
    if handler is not None and handler not in BUILT_IN_HANDLERS:
        if "." not in handler and ":" not in handler:
            raise Fault(
                ("handler",),
                f"expected FILE.py[:NAME], package.module:NAME or one of "
                f"{', '.join(BUILT_IN_HANDLERS)}, found {handler!r}",
            )
        handler = files.target("handler", handler)
    model = None
    if keys.model is not None:
        suffix = Path(keys.model).suffix
        if suffix not in files.suffixes:
            raise Fault(
                ("model",),
                f"{keys.model!r} has the suffix {suffix!r}; model files end with "
                f"{', '.join(files.suffixes)}",
            )
        model = str(files.find("model", keys.model))
    model_class = keys.model_class
    if model_class is not None:
        model_class = files.target("class", model_class)
        if ":" not in model_class:
            raise Fault(("class",), f"expected FILE.py:NAME, found {model_class!r}")
        if model is not None and Path(model).suffix not in STATE_SUFFIXES:
            raise Fault(("class",), f"{Path(model).name} is not a state_dict, so it fills no class")
    elif model is not None and _needs_class(Path(model)):
        if Path(model).stat().st_size == 0:
            raise Fault(("model",), f"{Path(model).name} is empty (0 bytes); copy or save it again")
        raise Fault(
            ("model",),
            f"{Path(model).name} holds weights only (a state_dict); add class: net.py:Net, the class or function that "
            f"builds the network",
        )
    if handler is None and model is None and model_class is None:
        raise Fault((), "name a handler: or a model:")
    return {"handler": handler, "model": model, "model_class": model_class}


def _needs_class(model: Path) -> bool:
    """Tell whether a file has only weights, and transformers does not know their network from a `config.json`."""
    has_config = model.suffix == ".safetensors" and model.with_name("config.json").is_file()
    return model.suffix in (".pth", ".safetensors") and not has_config


def _tensors(key: str, sections: Sequence[TensorSection]) -> tuple[TensorSpec, ...]:
    """Return the declared inputs or outputs; `key` is "inputs" or "outputs"."""
    specs: list[TensorSpec] = []
    for index, section in enumerate(sections):
        if any(spec.name == section.name for spec in specs):
            raise Fault((key, index, "name"), f"{section.name!r} is declared twice")
        kind = str(section.datatype)
        shape = tuple(size.value for size in section.shape)
        path = (key, index, "image")
        spec = TensorSpec(section.name, kind, shape, lengths=_lengths(section))
        if isinstance(section, InputSection):
            image = None if spec.lengths or section.pad else default_image(kind, shape)
            if section.image is not None:
                image = read_image(path, section.image, kind, shape)
            audio = None
            if section.audio is not None:
                audio = AudioSpec(**given(section.audio, AudioSpec))
                if problem := audio_problem(audio, kind, shape):
                    raise Fault((key, index, "audio"), problem)
            pad = None
            if section.pad is not None:
                pad = Padding(**given(section.pad, Padding))
                _check_portable(pad.value, (key, index, "pad", "value"))
            optional = section.optional
            specs.append(replace(spec, image=image, audio=audio, optional=optional, pad=pad))
        else:
            assert isinstance(section, OutputSection)
            encoded = None
            if section.image is not None:
                encoded = read_output_image(path, section.image, kind, shape)
            content_type = section.content_type or ""
            if content_type and (problem := file_problem(content_type, kind, shape)):
                raise Fault((key, index, "content_type"), problem)
            specs.append(replace(spec, output_image=encoded, content_type=content_type))
    return tuple(specs)


def _lengths(section: TensorSection) -> tuple[str, ...]:
    """Return the name of the length of each dimension; empty if no dimension has a name."""
    names = tuple(size.length for size in section.shape)
    return names if any(names) else ()


def read_version_policy(policy: Any) -> VersionPolicy:
    """Return the version policy; by default the highest version is served.

    Raises:
        Fault: The policy has both keys, which exclude each other.
    """
    if policy is None:
        return VersionPolicy()
    if isinstance(policy, str):
        return VersionPolicy(latest=0)  # "all", the only word that the key takes
    if policy.latest is not None and policy.specific is not None:
        raise Fault(("version_policy",), "latest and specific exclude each other")
    return VersionPolicy(
        latest=1 if policy.latest is None else policy.latest,
        specific=tuple(dict.fromkeys(policy.specific or ())),
    )


def _check_portable(value: object, path: tuple[str | int, ...]) -> None:
    """Refuse values that JSON cannot carry to a handler process."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise Fault((*path, str(key)), "a key here is a text; put it in quotes")
            _check_portable(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_portable(entry, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        raise Fault(path, f"expected a finite number, found {value}")


def _environment(given: dict[Any, Any]) -> dict[str, str]:
    """Return the variables of `env:` with their values as texts."""
    variables: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise Fault(("env", str(name)), "is not a variable's name")
        if (
            isinstance(value, bool)
            or not isinstance(value, (str, int, float))
            or "\0" in str(value)
        ):
            raise Fault(("env", name), f"expected a text or a number, found {describe(value)}")
        variables[name] = str(value)
    return variables
