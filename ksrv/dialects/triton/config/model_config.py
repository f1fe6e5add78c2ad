"""Reads a model of a Triton repository (`read_model`): its `config.pbtxt` becomes settings of ksrv.

Every key is applied, ignored with a line in the report, or refused if the model would give wrong answers without it.
ksrv serves ONNX, TorchScript and OpenVINO models, models of the Python backend, and ensembles. The folder is not
changed.
"""

from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.dialects.openvino.options import LOADER, OpenVinoOptions
from ksrv.dialects.triton.config.backends import (
    BACKENDS,
    ENSEMBLE,
    IGNORED,
    PLATFORMS,
    REFUSED,
    Backend,
)
from ksrv.dialects.triton.config.call_config import merge_call_config
from ksrv.dialects.triton.config.configuration import as_document, configuration
from ksrv.dialects.triton.config.ensembles import read_steps
from ksrv.dialects.triton.config.instance_groups import instances_of
from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.dialects.triton.config.onnx_settings import note_ignored, read_onnx
from ksrv.dialects.triton.config.python_models import PYTHON_PARAMETERS, python_settings
from ksrv.dialects.triton.config.sequence_batching import read_sequence_batching
from ksrv.dialects.triton.config.tensors import Tensors, read_tensors
from ksrv.dialects.triton.config.text_format import read_text_format
from ksrv.dialects.triton.declarations import TritonDeclarations
from ksrv.errors import LEADS_OUT
from ksrv.machine.cgroups import usable_cores
from ksrv.model.config import Cache, JoinPolicy, ModelConfig, VersionPolicy
from ksrv.model.fault import ConfigError, Fault, KeyPath
from ksrv.model.spec import Dimension
from ksrv.protocol.metadata import to_message
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import add_versions
from ksrv.repository.report import Report, reasons_for
from ksrv.repository.settings.labels import read_labels
from ksrv.repository.versions import version_folders
from ksrv.repository.yaml_document import Document, describe

CONFIG_NAME = "config.pbtxt"
MODEL_HANDLER = "ksrv.dialects.triton.handlers.model:TritonModel"
SEQUENCE_HANDLER = "ksrv.dialects.triton.handlers.sequence_model:TritonSequenceModel"
ENSEMBLE_RUNNER = "ksrv.dialects.triton.handlers.ensemble:EnsembleRunner"
DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's default if the file has dynamic_batching but no max_batch_size."""
LARGEST_QUEUE = 1_000_000

_SERVED = "ksrv serves onnxruntime, openvino, python, pytorch (TorchScript) and ensembles"


_THREADS = {"intra_op_thread_count", "INFERENCE_NUM_THREADS"}
"""The `parameters` that set the threads of an instance."""
_QUEUE_TIMEOUTS = dict.fromkeys(
    ("timeout_action", "default_timeout_microseconds", "allow_timeout_override"),
    "a request's time counts from its arrival to its answer (timeout_ms)",
)
_REFUSED_PARAMETERS = {"CPU_EXTENSION_PATH": "libraries of custom operators are not loaded"}


def is_triton_model(folder: Path) -> bool:
    """Whether a folder is a Triton model, and has no files of ksrv.

    It has a config.pbtxt, or a Python model, which may declare its inputs and outputs itself.
    """
    is_described = (folder / CONFIG_NAME).is_file() or _has_python_model(folder)
    return is_described and not _has_ksrv_files(folder)


def _has_python_model(folder: Path) -> bool:
    for version in version_folders(folder).values():
        path = version / BACKENDS["python"].file
        try:
            text = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if b"class TritonPythonModel" in text:
            return True
    return False


def may_be_configured(folder: Path) -> bool:
    """Whether a folder can be read as a Triton model if a load call brings the config.pbtxt."""
    if _has_ksrv_files(folder):
        return False
    return (folder / CONFIG_NAME).is_file() or bool(version_folders(folder))


def _has_ksrv_files(folder: Path) -> bool:
    places = (folder, *version_folders(folder).values())
    return any((at / name).is_file() for at in places for name in ("model.yaml", "handler.py"))


def read_model(path: Path, name: str, config: str | None = None) -> ModelEntry:
    """Return the Triton model in a folder.

    Args:
        config: The text of a config.pbtxt from a load call. It replaces the keys that a call may change.

    Returns:
        The entry with its report. It has an error if the model needs something that ksrv does not do.

    Raises:
        ConfigError: config.pbtxt cannot be read, or is wrong.
    """
    root = path.absolute()
    folders = version_folders(root)
    settings = _Settings(root, name, folders, *_folder_keys(root, needs_file=config is None))
    if config is not None:
        settings.change(*read_text_format(Path(CONFIG_NAME), config))
    with settings.document.naming_faults():
        return _entry(settings, path, name, folders)


def _entry(settings: "_Settings", path: Path, name: str, folders: dict[str, Path]) -> ModelEntry:
    """Return the model, with a source for each version that its version_policy chooses."""
    root, shared, report = settings.root, settings.read(), settings.report
    entry = ModelEntry(name, path=path, report=report)
    own_name = settings.keys.name
    if own_name and own_name != root.name:
        raise Fault(("name",), f"is {own_name!r}, and the folder is called {root.name!r}")
    if report.refused:
        entry.error = f"{root / CONFIG_NAME} asks for what ksrv does not do: {report.refusals()}"
        return entry
    if not folders and settings.backend is not ENSEMBLE:
        raise ConfigError(f"{root}: holds no version folder, such as {root / '1'}")
    # An ensemble may have no version folder.
    read = partial(settings.version, shared)
    if fault := add_versions(entry, root, folders or {"1": root}, shared.version_policy, read):
        raise Fault(("version_policy",), fault)
    return entry


def _folder_keys(root: Path, *, needs_file: bool) -> tuple[Keys, Document]:
    """Return the keys of a folder's config.pbtxt, or default keys if the folder has no such file.

    Args:
        needs_file: Whether a missing file is an error, unless the folder has a Python model.
    """
    file, text = root / CONFIG_NAME, None
    if not file.is_file():
        # With None `read_text_format` reads the file, and so raises the error that it is missing.
        text = 'backend: "python"' if _has_python_model(root) else None if needs_file else ""
    return read_text_format(file, text)


class _Settings:
    """Translates the keys of one config.pbtxt into settings, and fills the report meanwhile.

    Attributes:
        backend: The backend of the model, once `read` has chosen it.
    """

    def __init__(
        self, root: Path, name: str, folders: dict[str, Path], keys: Keys, document: Document
    ) -> None:
        self.root = root
        self._name = name
        self.keys = keys
        self.report = Report()
        self._folders = list(folders.values())
        self.document = document
        self.backend = BACKENDS["onnxruntime"]

    def change(self, keys: Keys, document: Document) -> None:
        """Replace the keys that a load call may change; see `merge_call_config`."""
        in_folder = self.keys
        with self.document.naming_faults():
            # With any number of rows: `max_batch_size` is a key that a call may change, so nothing is compared with it.
            completed = configuration(in_folder, self.root.name, self._backend(), 0)
        # Drop what choosing the backend has reported: `read` reports it again.
        self.report = Report()
        self.document = document
        with document.naming_faults():
            self.keys = merge_call_config(keys, in_folder, completed)

    def read(self) -> ModelConfig:
        """Return the settings that all versions share; `version` adds the model file.

        Raises:
            ConfigError: A key is wrong.
        """
        keys, applied = self.keys, self.report.applied
        self.backend = self._backend()
        is_python = self.backend.name == "python"
        self._report_fixed_keys(is_python)
        if self.backend is ENSEMBLE:
            return self._ensemble()
        if keys.ensemble_scheduling is not None:
            raise Fault(
                ("ensemble_scheduling",), f"is of no use to the backend {self.backend.name}"
            )
        batching, queue_size = self._batching()
        tensors = read_tensors(keys, self.report, self.backend.name)
        settings: dict[str, Any] = {"instances": 1, "device": "auto"}
        if self.backend.name == "onnxruntime":
            settings["onnx"] = read_onnx(keys, self.report)
        else:
            note_ignored(keys.optimization, self.report, all_keys=True)
        sequences = read_sequence_batching(keys, self.report, self.backend.name)
        if sequences is not None:
            batching = batching and replace(batching, max_delay_ms=sequences.delay_ms)
            # Each request of a sequence is one row; batches join rows of different sequences.
            settings |= {"sequences": sequences.limits, "row_limit": 1 if batching else 0}
        settings |= instances_of(keys.instance_group, self.report)
        if self.backend.name == "openvino" and settings["device"] == "auto":
            # `auto` could choose a GPU of torch, but OpenVINO runs on the CPU.
            settings["device"] = "cpu"
        if queue_size is not None:
            settings["queue_size"] = queue_size
        if (threads := self._threads()) is not None:
            settings["threads"] = threads
        if keys.response_cache and keys.response_cache.enable:
            settings["cache"] = Cache()
            applied["response_cache"] = "the same request gets the same answer, by `cache:`"
        if is_python:
            settings |= python_settings(keys, self.report)
        return ModelConfig(
            handler=None if is_python else MODEL_HANDLER if sequences is None else SEQUENCE_HANDLER,
            platform=self.backend.platform,
            inputs=tensors.inputs,
            outputs=tensors.outputs,
            runtime=LOADER if self.backend.name == "openvino" else "",
            dialect=TritonDeclarations(
                inputs=tensors.bound_inputs,
                outputs=tensors.bound_outputs,
                controls=sequences.controls if sequences else (),
                states=sequences.states if sequences else (),
            ).mapping()
            | self._openvino(tensors),
            labels=self._labels(),
            batching=batching,
            counts_rows=batching is not None,
            warmup=not is_python and (batching is not None or not tensors.is_open),
            version_policy=self._version_policy(),
            parameters=self._parameters(),
            configuration=self._configuration(batching.max_batch_size if batching else 0),
            **settings,
        )

    def _report_fixed_keys(self, is_python: bool) -> None:
        """Report the keys whose outcome does not depend on their values."""
        keys = self.keys
        self.report.refused |= reasons_for(keys, REFUSED)
        if keys.model_transaction_policy and keys.model_transaction_policy.decoupled:
            decoupled = "model_transaction_policy.decoupled"
            if is_python:
                self.report.applied[decoupled] = "any number of answers"
            else:
                self._refuse(decoupled, "one request has one answer here")
        self.report.ignored |= reasons_for(keys, IGNORED)

    def version(self, shared: ModelConfig, folder: Path) -> ModelConfig:
        """Return the settings of one version.

        Raises:
            ConfigError: The model file is missing or is not in the folder.
        """
        if self.backend is ENSEMBLE:
            return shared
        with self.document.naming_faults():
            return replace(shared, model=str(self._model_file(folder)))

    # ---- the backend and the files ----------------------------------------------------------

    def _backend(self) -> Backend:
        """Return the backend that the file names, or the backend that fits the names of model files."""
        keys, applied = self.keys, self.report.applied
        if keys.runtime:
            self._refuse("runtime", "a backend's other runtimes are not served")
        if keys.platform:
            applied["platform"] = keys.platform
            if keys.platform not in PLATFORMS:
                self._refuse("platform", f"{keys.platform[:64]!r} is not served; {_SERVED}")
                return BACKENDS["onnxruntime"]
            if keys.backend and keys.backend != PLATFORMS[keys.platform].name:
                raise Fault(
                    ("backend",), f"is {keys.backend!r}, and the platform {keys.platform!r}"
                )
            return PLATFORMS[keys.platform]
        if keys.backend:
            applied["backend"] = keys.backend
            if keys.backend not in BACKENDS:
                self._refuse("backend", f"{keys.backend[:64]!r} is not served; {_SERVED}")
            return BACKENDS.get(keys.backend, BACKENDS["onnxruntime"])
        if keys.ensemble_scheduling is not None:
            return ENSEMBLE
        named = keys.default_model_filename
        for backend in BACKENDS.values():
            if named and Path(named).suffix == Path(backend.file).suffix:
                return backend
            if not named and any((folder / backend.file).exists() for folder in self._folders):
                return backend
        raise ConfigError(
            f"{self.root / CONFIG_NAME}: names no backend or platform, and no version folder has "
            f"{' or '.join(backend.file for backend in BACKENDS.values())}"
        )

    def _model_file(self, folder: Path) -> Path:
        name = self.keys.default_model_filename or self.backend.file
        path = self._inside(folder, ("default_model_filename",), name)
        if path.suffix == ".onnx" and path.is_dir():  # a folder for the model and its external data
            path = path / Path(self.backend.file)
        if path.suffix not in (".onnx", ".pt", ".xml", ".py"):
            raise Fault(
                ("default_model_filename",), f"{name!r} ends with none of .onnx, .pt, .py and .xml"
            )
        if not path.is_file():
            raise ConfigError(f"{self.root / CONFIG_NAME}: the file {path} is missing")
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise ConfigError(f"{path} {LEADS_OUT}")
        return path

    def _inside(self, folder: Path, key: KeyPath, name: str) -> Path:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or "\0" in name or not relative.parts:
            raise Fault(key, f"{name[:128]!r} leaves the model's folder; name a file inside it")
        return folder / relative

    def _labels(self) -> tuple[str, ...] | None:
        named = {
            output.label_filename: index
            for index, output in enumerate(self.keys.output or ())
            if output.label_filename
        }
        if not named:
            return None
        if len(named) > 1:
            self._refuse("output.label_filename", "several files of labels for one model")
            return None
        [(name, index)] = named.items()
        key = ("output", index, "label_filename")
        path = self._inside(self.root, key, name)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise Fault(key, f"{name!r} {LEADS_OUT}")
        labels = read_labels(path, key)
        self.report.applied["output.label_filename"] = f"{len(labels)} labels of classes"
        return labels

    # ---- batches, versions and parameters ---------------------------------------------------

    def _batching(self) -> tuple[JoinPolicy | None, int | None]:
        """Return how requests join, and the size of the queue; None for the defaults."""
        keys, applied = self.keys, self.report.applied
        given, dynamic = keys.max_batch_size, keys.dynamic_batching
        size = given
        if size is None and dynamic is not None:
            size = DEFAULT_MAX_BATCH_SIZE
        if size:
            origin = "Triton's default" if given is None else "as in Triton"
            applied["max_batch_size"] = f"batches of up to {size} rows, {origin}"
        elif given is not None:
            applied["max_batch_size"] = "0: no batch dimension; requests run one by one"
        if dynamic is None:
            if size and keys.sequence_batching is None:
                applied["dynamic_batching"] = (
                    "left out, so Triton runs requests one by one; here requests that wait "
                    "together are joined"
                )
            return (JoinPolicy(max_batch_size=size) if size else None), None
        if not size:
            raise Fault(("dynamic_batching",), "needs a max_batch_size above 0")
        delay = (dynamic.max_queue_delay_microseconds or 0) / 1000
        if delay > 3_600_000:  # an hour in ms
            raise Fault(
                ("dynamic_batching", "max_queue_delay_microseconds"), "is more than an hour"
            )
        applied["dynamic_batching"] = f"requests are joined; the oldest waits up to {delay:g} ms"
        reasons = {
            "preferred_batch_size": "every size up to max_batch_size is taken",
            "preserve_ordering": "each request has its answer as soon as it is there",
            "priority_levels": "requests say their priority by themselves",
            "default_priority_level": "requests say their priority by themselves",
            "priority_queue_policy": "all priorities share one queue",
        }
        self.report.ignored |= reasons_for(dynamic, reasons, "dynamic_batching.")
        return JoinPolicy(max_batch_size=size, max_delay_ms=delay), self._queue_size(dynamic)

    def _queue_size(self, dynamic: Keys) -> int | None:
        policy = dynamic.default_queue_policy
        if policy is None:
            return None
        shown = "dynamic_batching.default_queue_policy"
        self.report.ignored |= reasons_for(policy, _QUEUE_TIMEOUTS, f"{shown}.")
        if not policy.max_queue_size:
            return None
        size = min(int(policy.max_queue_size), LARGEST_QUEUE)
        self.report.applied[f"{shown}.max_queue_size"] = f"{size} requests may wait"
        return size

    def _version_policy(self) -> VersionPolicy:
        policy, applied = self.keys.version_policy, self.report.applied
        if policy is None:
            return VersionPolicy()
        if policy.specific is not None:
            versions = tuple(dict.fromkeys(policy.specific.versions))
            applied["version_policy"] = f"the versions {', '.join(map(str, versions))}"
            return VersionPolicy(specific=versions)
        if policy.all is not None:
            applied["version_policy"] = "every version"
            return VersionPolicy(latest=0)
        latest = (policy.latest.num_versions if policy.latest else None) or 1
        applied["version_policy"] = (
            f"the {latest} highest versions" if latest > 1 else "the highest"
        )
        return VersionPolicy(latest=latest)

    def _parameters(self) -> dict[str, Any]:
        """Return all `parameters`, and report the parameters that no other method reports."""
        found: dict[str, Any] = {}
        for index, entry in enumerate(self.keys.parameters or ()):
            if entry.key in found:
                raise Fault(("parameters", index), f"{entry.key[:64]!r} is written twice")
            found[entry.key] = entry.value.string_value
            shown = f"parameters.{entry.key[:64]}"
            if entry.key in _REFUSED_PARAMETERS:
                self._refuse(shown, _REFUSED_PARAMETERS[entry.key])
            elif entry.key == "RESHAPE_IO_LAYERS" and self.backend.name == "openvino":
                self.report.applied[shown] = "the model is given the shapes that are declared"
            elif self.backend.name == "python":
                self.report.applied[shown] = PYTHON_PARAMETERS.get(entry.key, "the model reads it")
            elif entry.key not in _THREADS and shown not in self.report.applied:
                self.report.ignored[shown] = "it is shown in the model's configuration alone"
        return found

    def _openvino(self, tensors: Tensors) -> dict[str, Any]:
        """Return the options for OpenVINO's loader; empty for other backends."""
        if self.backend.name != "openvino":
            return {}
        given = {entry.key: entry.value.string_value for entry in self.keys.parameters or ()}
        shapes: dict[str, tuple[Dimension, ...]] = {}
        if given.get("RESHAPE_IO_LAYERS", "").lower() in ("yes", "true"):
            shapes = {
                bound.name: bound.model_shape or bound.shape for bound in tensors.bound_inputs
            }
        batches = bool(self.keys.max_batch_size) or self.keys.dynamic_batching is not None
        return OpenVinoOptions(batch=-1 if batches else 0, shapes=shapes).mapping()

    def _threads(self) -> int | None:
        """Return the threads of an instance, at most the cores, or None if no parameter sets them."""
        for index, entry in enumerate(self.keys.parameters or ()):
            if entry.key in _THREADS:
                text = entry.value.string_value
                if not (text.isascii() and text.isdigit() and int(text[:9]) <= 4096):
                    raise Fault(
                        ("parameters", index),
                        f"{entry.key}: expected a whole number from 0 to 4096, found {describe(text)}",
                    )
                threads, cores = int(text), usable_cores()
                if threads > cores:
                    self.report.ignored[f"parameters.{entry.key}"] = (
                        f"{threads} threads are more than the {cores} cores; an instance has {cores}"
                    )
                    return cores
                self.report.applied[f"parameters.{entry.key}"] = f"{threads} threads of an instance"
                return threads
        return None

    def _ensemble(self) -> ModelConfig:
        keys = self.keys
        for key in ("instance_group", "default_model_filename"):
            if getattr(keys, key) is not None:
                self.report.ignored[key] = "an ensemble has no model file"
        if keys.response_cache and keys.response_cache.enable:
            self.report.applied["response_cache"] = "the same request gets the same answer"
        note_ignored(keys.optimization, self.report, all_keys=True)
        tensors = read_tensors(keys, self.report, ENSEMBLE.name)
        steps = read_steps(keys, tensors)
        self.report.applied["ensemble_scheduling"] = " -> ".join(
            dict.fromkeys(step.model for step in steps)
        )
        return ModelConfig(
            runner=ENSEMBLE_RUNNER,
            inputs=tensors.inputs,
            outputs=tensors.outputs,
            dialect=TritonDeclarations(steps=steps).mapping(),
            needs=tuple((step.model, step.version) for step in steps),
            labels=self._labels(),
            row_limit=keys.max_batch_size or 0,
            counts_rows=bool(keys.max_batch_size),
            warmup=False,
            cache=Cache() if keys.response_cache and keys.response_cache.enable else None,
            version_policy=self._version_policy(),
            parameters=self._parameters(),
            configuration=self._configuration(keys.max_batch_size or 0),
        )

    def _configuration(self, max_batch_size: int) -> dict[str, Any]:
        found = configuration(self.keys, self._name, self.backend, max_batch_size)
        if self.backend.name != "python":
            return found
        # Like Triton, give a Python model every key, also keys that the file leaves out.
        return as_document(to_message("inference.ModelConfig", found))

    def _refuse(self, key: str, reason: str) -> None:
        self.report.refused[key] = reason
