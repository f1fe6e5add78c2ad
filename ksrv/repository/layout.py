"""Finds the models under the paths of `ksrv serve`: a model repository, a model's folder, or a file.

`Repository.scan` reads settings and lists versions; it loads nothing. `_models` decides what a path is, and `_read`
which reader reads a model: a reader of a dialect (`format.py`), or ksrv's reader of a handler file, a model file or a
folder. A faulty model does not stop the others: its entry, or the faulty version, has the error.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from ksrv.errors import InvalidRequest, NotFound, did_you_mean, quote
from ksrv.model.config import ModelConfig, ModelSource, VersionPolicy
from ksrv.model.fault import ConfigError
from ksrv.repository.entry import ModelEntry, is_model_name, unversioned
from ksrv.repository.format import NO_FORMATS, ArchiveReader, Formats
from ksrv.repository.handler_file import handler_file, handler_target, model_name
from ksrv.repository.model_yaml import (
    BARE_SUFFIXES,
    load_model_config,
    load_version_policy,
    unread_settings,
)
from ksrv.repository.permissions import insecure_paths
from ksrv.repository.report import Report
from ksrv.repository.settings.keys import CONFIG_NAME
from ksrv.repository.settings.values import MODEL_SUFFIXES
from ksrv.repository.versions import choose_versions, version_folders

log = logging.getLogger("ksrv.repository")


class RepositoryError(Exception):
    """A path on the command line is neither a model nor a repository with models."""


class Repository:
    """The models under some paths.

    Args:
        paths: Model repositories, single models' folders, single model files, and handlers in one
            file: `FILE.py[:NAME]`.
        formats: The readers of other servers' models.
        model_name: The name of the only model under the paths; None for the name of its folder or file.
        model_settings: Settings that override the `@settings` of the only handler file under the paths.

    Attributes:
        configs: For each model, the text of a config.pbtxt that a load call sent. It replaces the model's file.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        formats: Formats = NO_FORMATS,
        model_name: str | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.configs: dict[str, str] = {}
        # A handler may change the working directory later.
        self.paths = tuple(Path(path).absolute() for path in paths)
        self._model_name = model_name
        self._model_settings = model_settings or {}
        # The paths that were checked, and the reports that were logged, so that another scan does not log them again.
        self._looked_at: set[Path] = set()
        self._reported: dict[tuple[str, Path], Report] = {}
        self._formats = formats

    def scan(self) -> dict[str, ModelEntry]:
        """Read the models from disk, and log warnings about them.

        Returns:
            The models by name. Two models of the same name are one entry, with an error that names both paths.

        Raises:
            RepositoryError: A path does not exist or is not a model.
        """
        return self._look(self._warn)

    def look(self) -> dict[str, ModelEntry]:
        """Read the models from disk as `scan` does, but log nothing.

        Returns:
            The models by name.

        Raises:
            RepositoryError: A path does not exist or is not a model.
        """
        return self._look(lambda entry: None)

    def _look(self, see: Callable[[ModelEntry], object]) -> dict[str, ModelEntry]:
        """Read the models from disk; `see` gets each of them."""
        entries: dict[str, ModelEntry] = {}
        for path in self.paths:
            for found in self._models(path):
                see(found)
                earlier = entries.get(found.name)
                if earlier is None:
                    entries[found.name] = found
                elif _are_versions(earlier, found):
                    entries[found.name] = _joined(earlier, found)
                else:
                    text = self._two_models(found.name, earlier.path, found.path)
                    entries[found.name] = ModelEntry(found.name, error=text, path=earlier.path)
        self._formats.check(entries)
        return entries

    def entry(self, name: str, config: str | None = None) -> ModelEntry:
        """Read the models from disk as `scan` does, and return one model that is to be loaded.

        Args:
            config: The text of a config.pbtxt that replaces the model's file; None for the file.

        Raises:
            NotFound: The repository has no model of this name.
            InvalidRequest: A `config` was given, but the model has no config.pbtxt.
        """
        entries = self.scan()
        found = entries.get(name)
        if found is None:
            hint = did_you_mean(name, entries) or "; its index lists the models"
            raise NotFound(f"the repository holds no model of this name{hint}")
        if config is None and name not in self.configs:
            return found
        if config is not None and (
            self._unpacked(found.path) or self._formats.configurable(found.path) is None
        ):
            raise InvalidRequest(
                "parameter 'config' is for models with a config.pbtxt, and this model has ksrv's settings "
                "or is a file"
            )
        # `scan` has read the model with the configuration that an earlier load call gave, if any. This call replaces
        # that configuration: by `config`, or by the model's file if `config` is None.
        entries[name] = self._read(found.path, name, config)
        self._formats.check(entries)
        return entries[name]

    @contextmanager
    def configured(self, name: str, config: str | None) -> Iterator[None]:
        """Keep the configuration of a load call for a model; restore the previous configuration if the load fails.

        Args:
            config: The text of a config.pbtxt; None for the model's file.
        """
        before = self.configs.get(name)
        self._keep(name, config)
        try:
            yield
        except BaseException:
            self._keep(name, before)
            raise

    def _keep(self, name: str, config: str | None) -> None:
        if config is None:
            self.configs.pop(name, None)
        else:
            self.configs[name] = config

    def check(self, *, may_be_empty: bool = False) -> None:
        """Check the paths before the server starts.

        Args:
            may_be_empty: Whether a folder without models is allowed, because models may be added later.

        Raises:
            RepositoryError: A path is not a model, or has no model that can be read.
        """
        for path in self.paths:
            entries: list[ModelEntry] = []
            for entry in self._models(path):
                if any(not source.error for source in entry.versions.values()):
                    break
                entries.append(entry)
            else:
                if not may_be_empty:
                    raise RepositoryError(_nothing_in(path, entries, self._suffixes()))
        if self._model_name is not None:
            # All models have this name, so `scan` has one entry. Its error is a second model or an invalid name.
            error = next((entry.error for entry in self.scan().values()), None)
            if error:
                raise RepositoryError(error)

    def _two_models(self, name: str, one: Path, other: Path) -> str:
        """Return the error of two models with the same name."""
        if self._model_name is None:
            return f"two models are called {name}: {one} and {other}; rename one, or serve only one of them"
        return (
            f"setting 'model_name' ({name}) is the name of one model, but there are {one} and "
            f"{other}; without the setting, each is served under the name of its folder or file"
        )

    def _suffixes(self) -> str:
        return ", ".join((*BARE_SUFFIXES, ".py", *self._formats.archives, *self._formats.files))

    def _warn(self, entry: ModelEntry) -> None:
        """Log the report on another server's settings, files that are not read, and insecure permissions."""
        key = (entry.name, entry.path)
        if entry.report is not None and self._reported.get(key) != entry.report:
            self._reported[key] = entry.report
            entry.report.log(log, f"the model {entry.name} of {entry.path}")
        if entry.path not in self._looked_at and exists(entry.path):
            self._looked_at.add(entry.path)
            versions = [source.folder for source in entry.versions.values()]
            unread = unread_settings([entry.path, *versions])
            if unread and not entry.path.is_file() and not self._formats.folder_reader(entry.path):
                log.warning("the model %s: %s", entry.name, unread)
            try:
                doubt = next(insecure_paths(entry.path), None)
            except RecursionError:
                doubt = f"{entry.path} is nested too deep to be looked at"
            if doubt:
                log.warning("the model %s: %s; the server runs the code in it", entry.name, doubt)

    def _models(self, path: Path) -> Iterator[ModelEntry]:
        """Yield the models of a path: a handler file, a list, a model file, a model's folder or a repository."""
        target = handler_target(path)
        if target is not None and isfile(target[0]):
            yield self._entry(path, model_name(*target))
        elif isfile(path) and (lists := self._formats.list_reader(path)) is not None:
            if self._model_name is not None:
                raise RepositoryError(f"{path} names its models; expected no setting 'model_name'")
            try:
                yield from lists.read(path)
            except ConfigError as error:
                raise RepositoryError(str(error)) from None
        elif isfile(path):
            if path.suffix in MODEL_SUFFIXES and path.suffix not in (*BARE_SUFFIXES, ".pb"):
                if path.suffix == ".so":
                    raise RepositoryError(
                        f"{path}: put it into a folder with a {CONFIG_NAME} that names it under model:"
                    )
                raise RepositoryError(
                    f"{path}: holds weights only; put it into a folder with a {CONFIG_NAME} that names it "
                    f"under model:, and the class that builds the network under class:"
                )
            suffix = self._model_suffix(path)
            if not suffix and path.suffix in self._formats.files:
                suffix = path.suffix  # the load says what the file is not
            if not suffix:
                raise RepositoryError(f"{path}: a model's file ends with {self._suffixes()}")
            yield self._entry(path, path.name.removesuffix(suffix))
        elif isdir(path):
            if self._is_model_folder(path) or self._unpacked(path) is not None:
                yield self._entry(path, path.resolve().name)
            else:
                yield from self._repository(path)
        elif exists(path):
            raise RepositoryError(f"{path}: is neither a file nor a folder")
        else:
            raise RepositoryError(f"{path}: no such file or folder{_near_path(path)}")

    def _repository(self, path: Path) -> Iterator[ModelEntry]:
        """Yield the models in a folder: its folders, and its files with the suffix of a model."""
        try:
            children = sorted(path.iterdir())
        except OSError as error:
            raise RepositoryError(f"{path}: cannot be read ({error.strerror})") from None
        for child in children:
            if child.name.startswith((".", "_")):
                continue
            if child.is_dir():
                if not _is_empty(child):
                    yield self._entry(child, child.name)
            elif suffix := self._model_suffix(child):
                yield self._entry(child, child.name.removesuffix(suffix))

    def _model_suffix(self, path: Path) -> str:
        """Return the suffix of a model file or archive; "" for any other file, such as vocab.csv.gz."""
        known = (*BARE_SUFFIXES, *self._formats.archives)
        found = next((suffix for suffix in known if path.name.endswith(suffix)), "")
        return path.suffix if not found and self._formats.is_file(path) else found

    def _entry(self, path: Path, name: str) -> ModelEntry:
        name = self._model_name or name
        return self._read(path, name, self.configs.get(name))

    def _read(self, path: Path, name: str, config: str | None) -> ModelEntry:
        """Return the entry of a model.

        Args:
            config: The text of a config.pbtxt that replaces the model's file, or None.
        """
        if not is_model_name(name):
            error = (
                f"{path}: {quote(name)} is not a model name; it takes 1 to 128 letters, digits, "
                f"'.', '_' and '-', and begins with a letter or a digit"
            )
            # The index and the metrics show the name as UTF-8, but the name of a file may be any bytes.
            shown = name.encode("utf-8", "backslashreplace").decode()
            return ModelEntry(shown, error=error, path=path)
        try:
            if archives := self._formats.archives.get(self._model_suffix(path)):
                return archives.read(path, name)
            if (target := handler_target(path)) is not None and target[0].is_file():
                return handler_file(*target, name, self._model_settings, self._formats)
            if path.is_file():
                return _bare_file(path, name, self._formats)
            if (archive := self._unpacked(path)) is not None:
                return archive.read(path, name)
            if config is not None and (reader := self._formats.configurable(path)) is not None:
                return reader.read(path, name, config)
            if (reader := self._formats.folder_reader(path)) is not None:
                return reader.read(path, name)
            return folder_entry(path, name, self._formats)
        except (ConfigError, OSError) as error:
            return ModelEntry(name, error=str(error), path=path)
        except RecursionError:
            return ModelEntry(name, error=f"{path}: its settings are nested too deep", path=path)
        except Exception as error:  # the other models are served all the same
            log.exception("%s cannot be read", path)
            text = f"{path}: cannot be read: {type(error).__name__}: {error}"
            return ModelEntry(name, error=text, path=path)

    def _is_model_folder(self, path: Path) -> bool:
        if any((path / name).is_file() for name in (CONFIG_NAME, "handler.py")):
            return True
        return bool(version_folders(path)) or self._formats.folder_reader(path) is not None

    def _unpacked(self, path: Path) -> ArchiveReader | None:
        """Return the reader of a folder that is an unpacked archive, or None. A model.yaml makes it a model of ksrv."""
        return None if (path / CONFIG_NAME).is_file() else self._formats.unpacked(path)


def _near_path(path: Path) -> str:
    """Return a hint for a path that does not exist: a similar name in its folder, or the folder."""
    folder = path.absolute().parent
    try:
        names = [child.name for child in folder.iterdir()]
    except OSError:
        return f"; {folder} cannot be looked at either"
    return did_you_mean(path.name, names) or f" in {folder}"


def _nothing_in(path: Path, entries: Sequence[ModelEntry], suffixes: str) -> str:
    """Return why no model of a path can be served."""
    errors = [error for entry in entries for error in _errors(entry)]
    if len(entries) == 1:
        return errors[0]
    if errors:
        return f"{path}: none of its {len(entries)} folders and files is a model; {errors[0]}"
    unread = unread_settings([path])
    return (
        f"{path}: holds no model: no folder with a {CONFIG_NAME} or a handler.py and no file that "
        f"ends with {suffixes}{f' ({unread})' if unread else ''}"
    )


def _errors(entry: ModelEntry) -> list[str]:
    errors = [source.error for source in entry.versions.values() if source.error]
    return [entry.error, *errors] if entry.error else errors


def _are_versions(one: ModelEntry, other: ModelEntry) -> bool:
    """Tell whether two entries of the same name are versions of one model. Only archives state their versions."""
    sources = [*one.versions.values(), *other.versions.values()]
    return (
        not one.error
        and not other.error
        and not set(one.versions) & set(other.versions)
        and all(source.config and source.config.own_version for source in sources)
    )


def _joined(one: ModelEntry, other: ModelEntry) -> ModelEntry:
    versions = one.versions | other.versions
    order = sorted(versions, key=by_numbers)
    return ModelEntry(one.name, {version: versions[version] for version in order}, path=one.path)


def by_numbers(version: str) -> list[tuple[int, str]]:
    """Return a key for sorting versions by their numbers: 9.1, then 10.0."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._+-]", version)
    ]


def _is_empty(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is None
    except OSError:
        return False  # reading it will report the fault


def _bare_file(path: Path, name: str, formats: Formats) -> ModelEntry:
    """Return the entry of a model file without settings."""
    folder = path.parent
    config = formats.adopt(ModelConfig(model=str(path)), folder=folder, root=folder)
    return unversioned(name, path, folder, config)


def folder_entry(
    path: Path, name: str, formats: Formats, policy: VersionPolicy | None = None
) -> ModelEntry:
    """Return the entry of a model's folder, with or without version folders.

    Args:
        policy: The versions to serve besides the shadow version, instead of the versions that model.yaml names.

    Raises:
        ConfigError: The folder is not a model, or its settings are wrong.
        OSError: The folder cannot be read.
    """
    folders = version_folders(path)
    if not folders:
        return unversioned(name, path, path, load_model_config(path, formats=formats))
    entry, own = ModelEntry(name, path=path), load_version_policy(path)
    policy = replace(policy or own, shadow=own.shadow)

    def read(folder: Path) -> ModelConfig:
        # The model.yaml of a version must not name another shadow.
        return replace(load_model_config(path, folder, formats), shadow=own.shadow)

    if fault := add_versions(entry, path, folders, policy, read):
        entry.error = f"{path}: version_policy or shadow {fault}"
    return entry


Read: TypeAlias = Callable[[Path], ModelConfig]
"""Returns the settings in a folder. It raises `ConfigError` or `OSError` if they cannot be read."""


def add_versions(
    entry: ModelEntry, root: Path, folders: Mapping[str, Path], policy: VersionPolicy, read: Read
) -> str:
    """Add the versions that a policy chooses to an entry, each with its settings or the error of reading them.

    Args:
        root: The model's folder.
        folders: The folders of the versions, in rising order.

    Returns:
        The error of a policy that names missing versions; see `choose_versions`.
    """
    chosen, fault = choose_versions(policy, folders)
    for version in chosen:
        folder, config, error = folders[version], None, None
        try:
            config = read(folder)
        except (ConfigError, OSError) as problem:
            error = str(problem)
        entry.versions[version] = ModelSource(
            name=entry.name, version=version, folder=folder, root=root, config=config, error=error
        )
    return fault
