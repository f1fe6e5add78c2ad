"""The readers of another server's models, as the model repository calls them: a `Format`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ksrv.model.config import ModelConfig
from ksrv.repository.entry import ModelEntry
from ksrv.repository.settings.keys import Section
from ksrv.repository.yaml_document import Document


class FolderReader(Protocol):
    """Reads folders that hold a model of the format."""

    mark: str
    """The file that makes a folder such a model."""

    def is_model(self, folder: Path) -> bool:
        """Whether a folder is a model of the format, and no model of ksrv's."""

    def may_be_configured(self, folder: Path) -> bool:
        """Whether the folder can be read by a configuration that a load call brings."""

    def read(self, path: Path, name: str, config: str | None = None) -> ModelEntry:
        """Return the model of a folder.

        Args:
            path: The folder.
            name: The model's name.
            config: The text to read instead of the folder's settings.

        Raises:
            ConfigError: The settings cannot be read, or are wrong.
        """


class ListReader(Protocol):
    """Reads a file that lists models and says where they lie."""

    suffix: str
    """How the names of such files end."""

    def read(self, path: Path) -> Iterator[ModelEntry]:
        """Yield the models that a file lists.

        Raises:
            ConfigError: It is no such file; what is wrong with one model is that entry's error.
        """


class ArchiveReader(Protocol):
    """Reads archives, and folders that hold the files of one."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How the names of archives end; the first is that of folders with an archive's files."""

    @property
    def mark(self) -> str:
        """The file that makes a folder an archive's."""

    def read(self, path: Path, name: str) -> ModelEntry:
        """Return the model in an archive, under the archive's name.

        Args:
            path: The archive, or an unpacked archive.
            name: The name of an archive that cannot be read.
        """


class HandlerReader(Protocol):
    """Recognises handlers that are written for the other server."""

    key: str
    """The key of model.yaml that marks a whole folder as such a model."""

    @property
    def keys(self) -> type[Section]:
        """The keys of such a model.yaml."""

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
        """Return the settings with which a handler runs as the other server would run it.

        Args:
            folder: The folder of the version.
            root: The model's folder.
            name: The model's name, if it is not its folder's.
            function: Of a handler file, the function in it that is the handler, "" for a class; None leaves
                what `handler:` says.

        Returns:
            The settings as they are for any other handler.

        Raises:
            ConfigError: The settings ask for what such a handler does not do.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The readers of one format, None where it has no such thing.

    Attributes:
        check: Gives entries of the format that do not fit the other models their error.
        unread: Sentences on files that are not read by themselves, by their names.
    """

    folders: FolderReader | None = None
    lists: ListReader | None = None
    archives: ArchiveReader | None = None
    handlers: HandlerReader | None = None
    check: Callable[[Mapping[str, ModelEntry]], None] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


class Formats:
    """Several formats as the repository asks them.

    Args:
        formats: The formats.
    """

    def __init__(self, formats: Iterable[Format] = ()) -> None:
        self._formats = formats = tuple(formats)
        self.folders = tuple(one.folders for one in formats if one.folders is not None)
        self.lists = tuple(one.lists for one in formats if one.lists is not None)
        archives = [one.archives for one in formats if one.archives is not None]
        self.archives = {suffix: one for one in archives for suffix in one.suffixes}
        self.handlers = tuple(one.handlers for one in formats if one.handlers is not None)
        self._checks = tuple(one.check for one in formats if one.check is not None)
        self.unread = {name: text for one in formats for name, text in one.unread.items()}

    def without_archives(self) -> "Formats":
        """Return the formats with no reader of archives."""
        return Formats(replace(one, archives=None) for one in self._formats)

    def folder_reader(self, folder: Path) -> FolderReader | None:
        """Return the reader whose model a folder is, or None."""
        return next((one for one in self.folders if one.is_model(folder)), None)

    def configurable(self, folder: Path) -> FolderReader | None:
        """Return the reader that can read a folder by a configuration from elsewhere, or None."""
        return next((one for one in self.folders if one.may_be_configured(folder)), None)

    def list_reader(self, path: Path) -> ListReader | None:
        """Return the reader of a file that lists models, or None."""
        return next((one for one in self.lists if path.suffix == one.suffix), None)

    def unpacked(self, folder: Path) -> ArchiveReader | None:
        """Return the reader of the archive whose unpacked files a folder has, or None."""
        readers = self.archives.values()
        return next((one for one in readers if (folder / one.mark).is_file()), None)

    def adopt(self, config: ModelConfig, **facts: Any) -> ModelConfig:
        """Have each format look at a handler; see `HandlerReader.adopt`."""
        for one in self.handlers:
            config = one.adopt(config, **facts)
        return config

    def check(self, entries: Mapping[str, ModelEntry]) -> None:
        """Have each format look at all models."""
        for check in self._checks:
            check(entries)


NO_FORMATS = Formats()
"""The formats of ksrv alone."""
