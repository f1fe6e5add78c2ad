"""Reads a folder with a model-settings.json (`read_model`), or the variables MLSERVER_MODEL_* without such a file.

As with MLServer, a variable gives a key that the file leaves out: MLSERVER_MODEL_MAX_BATCH_SIZE, for keys of
`parameters` MLSERVER_MODEL_URI. Keys of the server are read from the settings.json of the folder, or of a folder above
it, and from variables such as MLSERVER_PARALLEL_WORKERS. Each key is applied, or reported as ignored, or refused.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ksrv._native.tensor.datatype import NAMES
from ksrv.dialects.mlflow.folder import MlflowFolders
from ksrv.dialects.openvino.json_document import read_json
from ksrv.errors import did_you_mean
from ksrv.model.config import JoinPolicy, ModelConfig
from ksrv.model.fault import Fault
from ksrv.repository.entry import ModelEntry, unversioned
from ksrv.repository.report import Report
from ksrv.repository.settings.keys import Text
from ksrv.repository.yaml_document import Document

FORMAT = "mlserver"
"""The key of `ModelConfig.dialect`: the settings of the model, as MLServer's `ModelSettings` takes them."""
SETTINGS_NAME = "model-settings.json"
PREFIX = "MLSERVER_MODEL_"
"""The beginning of the variables for a model; MLSERVER_ begins those for the server."""
MLFLOW = "mlserver_mlflow."
"""The package of the runtime for MLflow's folders."""
MLFLOW_RUNNER = "ksrv.dialects.mlserver.runner:MLflowRuntime"

_VERSION = {"expected": "1 to 64 letters, digits, '.', '_', '+' and '-'"}
_CLASS = {"expected": "MODULE.CLASS, such as models.MyModel"}
Version = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$", extra=_VERSION)]
Workers = Annotated[int, Meta(ge=0, le=1024)]


class TensorKeys(msgspec.Struct):
    """An entry of `inputs` or `outputs`."""

    name: Text
    datatype: Literal[tuple(known for known in NAMES if known != "BF16")]  # type: ignore[valid-type]
    shape: list[Annotated[int, Meta(ge=-1, le=2**31 - 1)]]
    parameters: dict[str, Any] = {}


class ParameterKeys(msgspec.Struct):
    """The keys of `parameters` that ksrv reads. Others are passed to the runtime."""

    uri: str | None = None
    version: Version | None = None
    content_type: str | None = None
    environment_path: str | None = None
    environment_tarball: str | None = None
    extra: dict[str, Any] | None = None


class ModelKeys(msgspec.Struct):
    """A model-settings.json. `trust` is a key of ksrv, which MLServer ignores."""

    implementation: Annotated[str, Meta(pattern=r"^[^.].*\.[^.]+$", extra=_CLASS)]
    name: str = ""
    platform: str = ""
    versions: list[str] = []
    inputs: list[TensorKeys] = []
    outputs: list[TensorKeys] = []
    parallel_workers: Workers | None = None
    max_batch_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    max_batch_time: Annotated[float, Meta(ge=0.0, le=3600.0)] = 0.0
    parameters: dict[str, Any] | None = None
    trust: Literal["pickle"] | None = None


class ServerKeys(msgspec.Struct):
    """The keys of settings.json that have a meaning for a model of ksrv."""

    parallel_workers: Workers = 1


def has_settings(folder: Path) -> bool:
    """Tell whether a folder is a model of MLServer, and has no files of ksrv."""
    if any((folder / name).is_file() for name in ("model.yaml", "handler.py")):
        return False
    # KServe's storage initializer brings only the model's file, and its runtime sets the variables. A folder of MLflow
    # describes itself.
    if os.environ.get(f"{PREFIX}IMPLEMENTATION", MLFLOW).startswith(MLFLOW):
        return (folder / SETTINGS_NAME).is_file()
    return folder / SETTINGS_NAME in (found := [*folder.rglob(SETTINGS_NAME)]) or not found


def read_model(path: Path, name: str, call_config: str | None = None) -> ModelEntry:
    """Return the model in a folder, under the name that its settings give it.

    Args:
        name: The name of the folder, or the name that --model-name gives the model.

    Raises:
        ConfigError: A file cannot be read, or a key is wrong.
    """
    root, report = path.absolute(), Report()
    document = _known(root / SETTINGS_NAME, ModelKeys, PREFIX, report)
    keys = document.convert(ModelKeys, document.value)
    files = [folder / "settings.json" for folder in (root, *root.parents)[:3]]
    file = next((file for file in files if file.is_file()), files[0])
    on_server = _known(file, ServerKeys, "MLSERVER_", report)
    server = on_server.convert(ServerKeys, on_server.value)
    with document.naming_faults():
        parameters: dict[str, Any] = _variables(ParameterKeys, PREFIX).value
        parameters |= keys.parameters or {}
        parameters["uri"] = parameters.get("uri") or str(root)
        known = {name: parameters.get(name) for name in ParameterKeys.__struct_fields__}
        found = document.convert(ParameterKeys, known, ("parameters",))
        _check_files(keys, found, root)
    name = keys.name or name if name == path.resolve().name else name  # else it is --model-name
    trust = {"trust": keys.trust} if keys.trust else {}
    dialect = {FORMAT: msgspec.to_builtins(keys) | {"name": name, "parameters": parameters | trust}}
    if keys.implementation.startswith(MLFLOW):
        given = {"own_version": found.version or "", "batching": None, "dialect": dialect, **trust}
        return MlflowFolders(runner=MLFLOW_RUNNER, **given).read(root / str(found.uri), name)
    workers = server.parallel_workers if keys.parallel_workers is None else keys.parallel_workers
    report.applied["implementation"] = f"{keys.implementation}; parallel_workers: {workers}"
    batching = _batching(keys, report)
    config = ModelConfig(
        runner="ksrv.dialects.mlserver.runner:MLServerRunner",
        executor="process",
        instances=max(1, workers),
        retry=False,
        timeout_ms=0,
        start_timeout_s=600.0,  # MLServer waits for `load` without a limit
        warmup=False,
        batching=batching,
        counts_rows=batching is not None,
        own_version=found.version or "",
        python=str(root / found.environment_path) if found.environment_path else "",
        parameters=found.extra or {},
        dialect=dialect,
    )
    entry = unversioned(name, path, root, config)
    entry.report = report
    return entry


def _batching(keys: ModelKeys, report: Report) -> JoinPolicy | None:
    """Return how requests are joined; None if each runs alone, as in MLServer without both keys."""
    rows, delay_ms = keys.max_batch_size, keys.max_batch_time * 1000
    if rows > 1 and not delay_ms:
        report.ignored["max_batch_size"] = "without max_batch_time requests are not joined"
    if rows < 2 or not delay_ms:
        return None
    report.applied["max_batch_size"] = f"{rows} rows; the first request waits {delay_ms:g} ms"
    return JoinPolicy(max_batch_size=rows, max_delay_ms=delay_ms, split=True)


def _known(file: Path, keys: type[msgspec.Struct], prefix: str, report: Report) -> Document:
    """Return the keys of a file, completed by variables. Unknown keys are reported and left out, as in MLServer."""
    document = read_json(file) if file.is_file() else Document.of(Path(f"{prefix}*"), {}, {})
    if not isinstance(document.value, dict):
        document.fail((), 'expected an object such as {"implementation": "models.Model"}')
    known, given = keys.__struct_fields__, document.value
    for key in (key for key in given if key not in known and given[key]):
        reason = did_you_mean(key, known).strip() or "it changes nothing in ksrv"
        report.ignored[f"{file.name} {key}"] = reason
    document.value = {key: value for key, value in given.items() if key in known}
    document.take(_variables(keys, prefix), fill=True)
    return document


def _variables(keys: type[msgspec.Struct], prefix: str) -> Document:
    """Return the keys that variables of the environment give."""
    fields = {prefix + field.name.upper(): field for field in msgspec.structs.fields(keys)}
    given = [(field, os.environ[name]) for name, field in fields.items() if name in os.environ]
    found = {field.name: _value(text, field.type) for field, text in given}
    return Document.of(Path(f"{prefix}*"), found, {})


def _value(text: str, kind: Any) -> Any:
    """Return the value of a variable; lists and objects are JSON."""
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text)
    return text  # the conversion says what it expects


def _check_files(keys: ModelKeys, parameters: ParameterKeys, root: Path) -> None:
    """Refuse a missing file, and a file that runs code unless the settings trust it."""
    uri, runtime = str(parameters.uri), keys.implementation
    if parameters.environment_tarball:
        raise Fault(("parameters", "environment_tarball"), "unpack it, and set environment_path")
    if runtime.startswith("mlserver_") and "://" not in uri and not (root / uri).exists():
        hint = did_you_mean(Path(uri).name, (one.name for one in root.iterdir()))
        raise Fault(("parameters", "uri"), f"{root / uri} does not exist{hint}")
    if keys.trust is None and runtime.startswith("mlserver_sklearn.") and ".skops" not in uri:
        how = f'write "trust": "pickle" into {SETTINGS_NAME}, or set {PREFIX}TRUST=pickle'
        text = f"{runtime} loads a pickle, which may run any code. If you trust its origin, {how}"
        raise Fault(("trust",), f"{text}; or save the model with skops")
