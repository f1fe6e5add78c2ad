"""Reads folders with an `MLmodel` file; see `ksrv.repository.format.FolderReader`.

A `model.yaml` beside `MLmodel` may have the keys that need no files, and `trust: pickle`. A `model.yaml` that names a
handler or a model file makes the folder a model of ksrv, and `MLmodel` is not read.
"""

from functools import partial
from pathlib import Path
from typing import Any, Literal

from ksrv.dialects.mlflow.calls import RUNNER
from ksrv.dialects.mlflow.pickles import find_pickle
from ksrv.dialects.mlflow.signature import Signature, read_signature
from ksrv.model.config import ModelConfig, VersionPolicy
from ksrv.model.fault import ConfigError, Fault
from ksrv.repository.entry import ModelEntry
from ksrv.repository.layout import add_versions
from ksrv.repository.model_yaml import load_version_policy
from ksrv.repository.report import Report
from ksrv.repository.settings.keys import (
    CONFIG_NAME,
    MillisecondsOrNone,
    VersionSection,
    section,
)
from ksrv.repository.settings.values import read_version_policy, shared_settings
from ksrv.repository.versions import version_folders
from ksrv.repository.yaml_document import Document, describe

MLMODEL = "MLmodel"
PYFUNC = "python_function"
"""The flavour that every Python model of MLflow has beside the flavour of its library."""
OWN_KEYS = ("handler", "model", "class")
"""Keys of model.yaml that make a folder a model of ksrv."""

MlflowKeys = section(
    "MlflowKeys",
    ModelConfig,
    shared=True,
    timeout_ms=MillisecondsOrNone,
    trust=Literal["pickle"],
    version_policy=Literal["all"] | VersionSection,
)


class MlflowFolders:
    """The reader; see the module.

    Args:
        settings: Keys of `ModelConfig` from another dialect. They override the keys of model.yaml.
    """

    mark = MLMODEL

    def __init__(self, **settings: Any) -> None:
        self._settings = {"runner": RUNNER} | settings

    def is_model(self, folder: Path) -> bool:
        """See `FolderReader.is_model`."""
        if not (folder / MLMODEL).is_file() and not _versions(folder):
            return False
        if (folder / "handler.py").is_file():
            return False
        try:
            value = _settings(folder, folder).value
        except ConfigError:
            return True  # `read` reports the fault
        return not isinstance(value, dict) or not any(key in value for key in OWN_KEYS)

    def may_be_configured(self, folder: Path) -> bool:
        """See `FolderReader.may_be_configured`: load calls have no configuration for MLflow's models."""
        return False

    def read(self, path: Path, name: str, config: str | None = None) -> ModelEntry:
        """See `FolderReader.read`."""
        root, report = path.absolute(), Report()
        folders = _versions(root)
        policy = load_version_policy(root) if folders else VersionPolicy()
        entry = ModelEntry(name, path=path, report=report)
        read = partial(_config, root, report=report, others=self._settings)
        alone = {self._settings.get("own_version", ""): root}
        if fault := add_versions(entry, root, folders or alone, policy, read):
            entry.error = f"{root / CONFIG_NAME}: version_policy.specific {fault}"
        return entry


def _versions(folder: Path) -> dict[str, Path]:
    """Return the version folders of a model by name; none if the folder has an MLmodel."""
    if (folder / MLMODEL).is_file():
        return {}
    found = version_folders(folder)
    return {name: found[name] for name in found if (found[name] / MLMODEL).is_file()}


def _settings(root: Path, folder: Path) -> Document:
    """Return the model.yaml of a version, else of the model; without any, a document without keys."""
    places = (at / CONFIG_NAME for at in (folder, root))
    path = next((place for place in places if place.is_file()), None)
    document = Document.of(folder, {}, {}) if path is None else Document.read(path)
    document.value = {} if document.value is None else document.value
    return document


def _config(root: Path, folder: Path, report: Report, others: dict[str, Any]) -> ModelConfig:
    """Return the settings of a version; `report` gets what `MLmodel` says.

    Args:
        others: Keys of `ModelConfig` that override the keys of model.yaml.
    """
    document = _settings(root, folder)
    with document.naming_faults():
        keys: Any = document.convert(MlflowKeys, document.value)
        settings = shared_settings(keys) | others
        settings["version_policy"] = read_version_policy(keys.version_policy)
        trusted = settings.get("trust") is not None
    signature = _read_mlmodel(folder, report)
    pickle = None if trusted else find_pickle(folder)
    if pickle is not None:
        raise ConfigError(
            f"{pickle} is a pickle, and loading a pickle runs the code in it. If you trust it, write the line 'trust: pickle' "
            f"into {folder / CONFIG_NAME}. Or save the model without a pickle: scikit-learn with "
            f"serialization_format='skops', a python_model as the path of its .py file"
        )
    given = tuple(document.value)
    with document.naming_faults():
        fixed = next((spec for spec in signature.inputs if not spec.batched), None)
        if settings.get("batching") is not None and (fixed or not signature.inputs):
            reason = f"the input {fixed.name!r} has none" if fixed else "it has no signature"
            raise Fault(("batching",), f"joins the rows of requests, and {reason}")
    return ModelConfig(
        executor="process",
        inputs=signature.inputs,
        outputs=signature.outputs,
        given=given,
        **settings,
    )


def _read_mlmodel(folder: Path, report: Report) -> Signature:
    """Return the signature of a model that `mlflow.pyfunc` can load."""
    document = Document.read(folder / MLMODEL)
    value = document.value
    with document.naming_faults():
        if not isinstance(value, dict):
            raise Fault((), f"expected keys and values, found {describe(value)}")
        flavors = value.get("flavors")
        if not isinstance(flavors, dict):
            raise Fault(("flavors",), f"expected the flavours by name, found {describe(flavors)}")
        if not isinstance(flavors.get(PYFUNC), dict):
            raise Fault(
                ("flavors",),
                f"has {', '.join(map(str, flavors)) or 'no flavour'}, and ksrv loads models by the flavour {PYFUNC}, which "
                f"mlflow writes for every model that Python runs; save the model again with it",
            )
        signature = read_signature(value.get("signature"))
    _fill(report, flavors, value.get("mlflow_version"), signature)
    return signature


def _fill(report: Report, flavors: dict[str, Any], version: object, signature: Signature) -> None:
    """Put what an MLmodel says into the report."""
    applied = report.applied
    names = [str(name) for name in flavors if name != PYFUNC]
    applied["flavors"] = f"{', '.join([*names, PYFUNC])}; mlflow.pyfunc loads the model"
    applied["mlflow_version"] = f"saved by MLflow {version}" if version else "not given"
    for key, tensors in ("inputs", signature.inputs), ("outputs", signature.outputs):
        if tensors:
            applied[f"signature.{key}"] = ", ".join(f"{one.name} {one.datatype}" for one in tensors)
    if not signature.inputs:
        applied["signature"] = "none: requests may have any inputs"
    if signature.params:
        params = (f"{name}={default!r}" for name, default in signature.params.items())
        applied["signature.params"] = f"{', '.join(params)}; parameters of a request"
