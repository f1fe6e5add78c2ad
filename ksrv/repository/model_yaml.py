"""Reads the settings of a model's folder: `load_model_config` turns a model.yaml into a checked `ModelConfig`.

`Document` parses the YAML, remembers the line of each key, and converts the values to the structs of
`settings/keys.py`. The keys of the handler's `@settings` fill the keys that model.yaml leaves out. `settings/values.py`
then checks and completes the values. Every error names file, line and key.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.model.config import ModelConfig, VersionPolicy
from ksrv.model.fault import ConfigError, Fault
from ksrv.repository.format import NO_FORMATS, Formats
from ksrv.repository.handler_code import HandlerCode, installed_file
from ksrv.repository.settings.keys import CONFIG_NAME, ModelKeys, given
from ksrv.repository.settings.values import ModelFiles, read_settings, read_version_policy
from ksrv.repository.yaml_document import Document, describe

UNREAD_NAMES = {
    "model.yml": f"call it {CONFIG_NAME}",
    "config.pbtxt": f"{CONFIG_NAME} and handler.py take precedence; remove them to serve it",
}
"""Files that look like settings and are not read, with a remedy."""
MISNAMED = ("model.yml", CONFIG_NAME)
"""Names, in lower case, of misspelt settings files: a folder without a model.yaml is refused if it has such a file."""
BARE_SUFFIXES = (".pt", ".pt2", ".onnx", ".xml", ".tflite")
"""The suffixes of files that are complete models: they need no `class:`."""
SAVED_MODEL = "saved_model.pb"
"""The file of a TensorFlow SavedModel. It is a model in a folder, with its variables beside it."""
TENSORFLOW_SUFFIXES = (".tflite", ".pb")


def unread_settings(folders: Sequence[Path]) -> str:
    """Return a sentence on files of a model's folders that look like settings and are not read.

    Returns:
        "model.yml is not read: call it model.yaml", or "".
    """
    found = {name for folder in folders for name in UNREAD_NAMES if (folder / name).is_file()}
    return "; ".join(f"{name} is not read: {UNREAD_NAMES[name]}" for name in sorted(found))


def load_version_policy(folder: Path) -> VersionPolicy:
    """Return the version policy and `shadow` of a model, from the `model.yaml` in the model's folder alone.

    Raises:
        ConfigError: The folder's `model.yaml` cannot be read, or its policy is invalid.
    """
    path = folder / CONFIG_NAME
    if not path.is_file():
        return VersionPolicy()
    document = Document.read(path)
    value = {} if document.value is None else document.value
    with document.naming_faults():
        if not isinstance(value, dict):
            raise Fault((), f"expected keys and values, found {describe(value)}")
        read = {key: value.get(key) for key in ("version_policy", "shadow")}
        keys: Any = document.convert(ModelKeys, read)
        shadow = given(keys, ModelConfig).get("shadow")
        return replace(read_version_policy(keys.version_policy), shadow=shadow)


def load_model_config(
    folder: Path, version_folder: Path | None = None, formats: Formats = NO_FORMATS
) -> ModelConfig:
    """Return the settings of one model, or of one of its versions.

    A `model.yaml` in the version folder replaces the `model.yaml` in the model's folder. Files are looked for in the
    version folder, then in the model's folder. A folder without a `model.yaml` is served by its `handler.py`, or by the
    only model file in it.

    Args:
        version_folder: The folder of the version, or None for an unversioned model.
        formats: The readers of other servers' handlers.

    Returns:
        The checked settings; paths in them are absolute.

    Raises:
        ConfigError: The settings are wrong. The text names file, line and key.
    """
    folders = [folder] if version_folder is None else [version_folder, folder]
    path = next((at / CONFIG_NAME for at in folders if (at / CONFIG_NAME).is_file()), None)
    document = Document.read(path) if path else _without_config(folders, formats)
    document.value = {} if document.value is None else document.value
    with document.naming_faults():
        return _read(document, folders, folder, formats, has_file=path is not None)


def _read(
    document: Document, folders: Sequence[Path], root: Path, formats: Formats, *, has_file: bool
) -> ModelConfig:
    """Return the settings of a document.

    Args:
        folders: The folders in which files are found.
        has_file: Whether the document is a model.yaml.
    """
    value = document.value
    if isinstance(value, dict) and "requirements" in value:
        raise Fault(
            ("requirements",),
            "ksrv installs no packages; make an environment with them before the deployment (python -m venv), and "
            "name its folder in python:",
        )
    for reader in formats.handlers:
        if isinstance(value, dict) and value.get(reader.key) is not None:
            return reader.read(document, folders[0].absolute())
    # Files that a model.yaml names must be in the model's folder. Without a model.yaml, the names are found by listing
    # the folder, and may be links to other folders.
    files = ModelFiles(root if has_file else Path("/"), folders, formats.files)
    # Only to raise for wrong keys: `_take_decorated` relies on a mapping whose `handler` is a text. It adds keys to
    # `value`, which the second conversion then reads.
    document.convert(ModelKeys, value)
    _take_decorated(document, files)
    config = read_settings(document.convert(ModelKeys, value), files, tuple(value))
    return formats.adopt(config, folder=folders[0].absolute(), root=root.absolute())


def _take_decorated(document: Document, files: "ModelFiles") -> None:
    """Fill the keys that a model.yaml leaves out from the handler's `@settings`."""
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
        return  # the load will report the missing module
    try:
        code = HandlerCode.read(file, files.folders)
    except ConfigError:
        return  # the load will report the fault
    if not name:
        name = code.only_decorated()
        if name:
            document.value["handler"] = f"{handler}:{name}"
    document.take(code.settings(name), fill=True)


def _without_config(folders: Sequence[Path], formats: Formats) -> Document:
    """Return the keys of a folder without model.yaml: the keys of its handler.py or its model file."""
    for folder in folders:
        files = sorted(entry for entry in folder.iterdir() if entry.is_file())
        misnamed = [entry for entry in files if entry.name.lower() in MISNAMED]
        if misnamed:
            raise ConfigError(f"{misnamed[0]} is not read: call it {CONFIG_NAME}")
        models = [entry for entry in files if entry.suffix in BARE_SUFFIXES]
        models += [entry for entry in files if entry.name == SAVED_MODEL]
        others = [entry for entry in files if formats.is_file(entry)]
        if (folder / "handler.py").is_file():
            # A handler may run TensorFlow's files by TensorFlow. For ksrv's loader, model.yaml must name the file.
            ours = [entry for entry in models if entry.suffix not in TENSORFLOW_SUFFIXES]
            keys = {"handler": "handler.py"} | ({"model": ours[0].name} if len(ours) == 1 else {})
            return Document.of(folder / "handler.py", keys, {})
        models += others
        if len(models) == 1:
            return Document.of(folder, {"model": models[0].name}, {})
        if models:
            names = ", ".join(entry.name for entry in models)
            raise ConfigError(
                f"{folder}: holds several model files ({names}) and no {CONFIG_NAME} that names one"
            )
    unread = unread_settings(folders)
    if not unread:
        found = [name for name in formats.unread if any((at / name).is_file() for at in folders)]
        unread = "; ".join(formats.unread[name] for name in found)
    raise ConfigError(
        f"{folders[-1]}: holds no {CONFIG_NAME}, no handler.py and no model file"
        f"{f' ({unread})' if unread else ''}"
    )
