"""The interfaces by which the model repository reads the model formats of other servers.

A dialect has a `Format` (`ksrv/dialects/dialect.py`): up to five readers, each for one form in which the other server
stores models. `Formats` joins the formats of all dialects; `layout.py` asks it which reader takes a path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ksrv.model.config import ModelConfig
from ksrv.model.fault import Fault
from ksrv.repository.entry import ModelEntry
from ksrv.repository.settings.keys import Section
from ksrv.repository.yaml_document import Document


class FolderReader(Protocol):
    """Reads folders that are models of the format, such as folders with a config.pbtxt."""

    mark: str
    """The name of the file that such a folder has."""

    def is_model(self, folder: Path) -> bool:
        """Tell whether a folder is a model of the format, and not of ksrv."""

    def may_be_configured(self, folder: Path) -> bool:
        """Tell whether the folder can be read with a configuration that a load call contains."""

    def read(self, path: Path, name: str, config: str | None = None) -> ModelEntry:
        """Return the model of a folder.

        Args:
            path: The folder.
            name: The model's name.
            config: The text of a configuration that replaces the folder's file.

        Raises:
            ConfigError: The settings cannot be read, or are wrong.
        """


class ListReader(Protocol):
    """Reads files that list models with their paths, such as the config.json of OpenVINO Model Server."""

    suffix: str
    """The suffix of such files."""

    def read(self, path: Path) -> Iterator[ModelEntry]:
        """Yield the models that a file lists.

        Raises:
            ConfigError: The file is not a list of models. A fault of one model is the error of its entry.
        """


class ArchiveReader(Protocol):
    """Reads archives, such as .mar files, and folders with the files of an unpacked archive."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of archives; the first is for folders with an archive's files."""

    @property
    def mark(self) -> str:
        """The path of the file by which a folder is recognised as an unpacked archive."""

    def read(self, path: Path, name: str) -> ModelEntry:
        """Return the model in an archive, under the name that the archive states.

        Args:
            path: The archive, or the folder of an unpacked archive.
            name: The name for an archive that cannot be read.
        """


class FileReader(Protocol):
    """Reads model files that ksrv's loaders do not load, such as the trees of XGBoost."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of such files."""

    def is_model(self, path: Path) -> bool:
        """Tell whether a file with one of the suffixes is a model. A .txt file may be anything."""

    def adopt(self, config: ModelConfig) -> ModelConfig:
        """Return the settings of a model whose `model` is such a file, with the loader of the file.

        Raises:
            ConfigError: The settings ask for a feature that such a model lacks.
        """


class HandlerReader(Protocol):
    """Reads handlers that are written for the other server, in folders with a model.yaml or in one file."""

    key: str
    """The key of model.yaml that says that the folder is a model of the other server."""

    @property
    def keys(self) -> type[Section]:
        """The keys of a model.yaml that has this key."""

    def read(self, document: Document, folder: Path) -> ModelConfig:
        """Return the settings of a folder whose model.yaml has the key.

        Raises:
            ConfigError: model.yaml or the other server's own files are wrong.
        """

    def adopt(
        self,
        config: ModelConfig,
        *,
        folder: Path,
        root: Path,
        name: str = "",
        function: str | None = None,
    ) -> ModelConfig:
        """Return the settings with which a handler runs as in the other server, if it is written for that server.

        Args:
            folder: The folder of the version.
            root: The model's folder.
            name: The model's name, if it is not its folder's.
            function: For a handler file, the function that is the handler, "" if it is a class; None if `handler:`
                names it.

        Returns:
            The changed settings; for any other handler the settings without a change.

        Raises:
            ConfigError: The settings ask for a feature that such a handler lacks.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The readers of one server's model formats. A reader is None if the server has no models of this form.

    Attributes:
        check: Sets the error of entries that do not fit the other models, such as an ensemble of a missing model.
        unread: Hints about files that ksrv does not read by themselves, by the names of the files.
    """

    folders: FolderReader | None = None
    lists: ListReader | None = None
    archives: ArchiveReader | None = None
    files: FileReader | None = None
    handlers: HandlerReader | None = None
    check: Callable[[Mapping[str, ModelEntry]], None] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


class Formats:
    """The formats of all dialects. Each method asks one format after the other."""

    def __init__(self, formats: Iterable[Format] = ()) -> None:
        self._formats = formats = tuple(formats)
        self.folders = tuple(each.folders for each in formats if each.folders is not None)
        self.lists = tuple(each.lists for each in formats if each.lists is not None)
        archives = [each.archives for each in formats if each.archives is not None]
        self.archives = {suffix: reader for reader in archives for suffix in reader.suffixes}
        files = [each.files for each in formats if each.files is not None]
        self.files = {suffix: reader for reader in files for suffix in reader.suffixes}
        self.handlers = tuple(each.handlers for each in formats if each.handlers is not None)
        self._checks = tuple(each.check for each in formats if each.check is not None)
        self.unread = {name: text for each in formats for name, text in each.unread.items()}

    def without_archives(self) -> "Formats":
        """Return the formats without their readers of archives."""
        return Formats(replace(each, archives=None) for each in self._formats)

    def folder_reader(self, folder: Path) -> FolderReader | None:
        """Return the reader for a folder that is a model of another server, or None."""
        return next((reader for reader in self.folders if reader.is_model(folder)), None)

    def configurable(self, folder: Path) -> FolderReader | None:
        """Return the reader that can read a folder with the configuration of a load call, or None."""
        return next((reader for reader in self.folders if reader.may_be_configured(folder)), None)

    def is_file(self, path: Path) -> bool:
        """Tell whether a file is a model of another format."""
        return path.suffix in self.files and self.files[path.suffix].is_model(path)

    def list_reader(self, path: Path) -> ListReader | None:
        """Return the reader of a file that lists models, or None."""
        fitting = (reader for reader in self.lists if path.suffix == reader.suffix)
        return None if self.is_file(path) else next(fitting, None)

    def unpacked(self, folder: Path) -> ArchiveReader | None:
        """Return the reader for a folder with the files of an unpacked archive, or None."""
        readers = self.archives.values()
        return next((reader for reader in readers if (folder / reader.mark).is_file()), None)

    def adopt(self, config: ModelConfig, **facts: Any) -> ModelConfig:
        """Return settings after each format has adopted them; see `HandlerReader.adopt` and `FileReader.adopt`.

        Raises:
            ConfigError: A reader refuses the settings, or no reader takes the file that they trust.
        """
        for reader in self.handlers:
            config = reader.adopt(config, **facts)
        file = self.files.get(Path(config.model or "").suffix)
        if file is None and config.trust is not None:
            raise Fault(("trust",), "is for .joblib and .pkl files under model:; leave it out")
        return config if file is None else file.adopt(config)

    def check(self, entries: Mapping[str, ModelEntry]) -> None:
        """Set the errors of entries that do not fit the other models."""
        for check in self._checks:
            check(entries)


NO_FORMATS = Formats()
"""No format but ksrv's."""
