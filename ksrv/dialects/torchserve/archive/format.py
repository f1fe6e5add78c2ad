"""TorchServe's readers of model files, in the interface of the model repository (`ksrv.repository.format`)."""

from pathlib import Path

from ksrv.dialects.torchserve.archive.archive import ARCHIVE_SUFFIXES, MANIFEST
from ksrv.dialects.torchserve.archive.defaults import ArchiveDefaults
from ksrv.dialects.torchserve.archive.detection import as_torchserve
from ksrv.dialects.torchserve.archive.keys import UnpackedKeys
from ksrv.dialects.torchserve.archive.model_config import read_archive
from ksrv.dialects.torchserve.archive.unpacked import read_unpacked
from ksrv.model.config import ModelConfig
from ksrv.repository.entry import ModelEntry
from ksrv.repository.format import Format
from ksrv.repository.settings.values import shared_settings
from ksrv.repository.yaml_document import Document


class _Archives:
    """Reads archives; see `ksrv.repository.format.ArchiveReader`."""

    suffixes = ARCHIVE_SUFFIXES
    mark = str(MANIFEST)

    def __init__(self, defaults: ArchiveDefaults) -> None:
        self._defaults = defaults

    def read(self, path: Path, name: str) -> ModelEntry:
        return read_archive(path, name, self._defaults)


class _Handlers:
    """Reads folders with `torchserve: true`, and adopts handlers that import `ts`; see `HandlerReader`."""

    key = "torchserve"
    keys = UnpackedKeys

    def read(self, document: Document, folder: Path) -> ModelConfig:
        keys = document.convert(UnpackedKeys, document.value)
        return read_unpacked(keys, shared_settings(keys), folder)

    adopt = staticmethod(as_torchserve)


def torchserve_format(defaults: ArchiveDefaults) -> Format:
    """Return the readers, which use these defaults for keys that an archive leaves out."""
    return Format(archives=_Archives(defaults), handlers=_Handlers())


FORMAT = torchserve_format(ArchiveDefaults())
"""The readers without a config.properties."""
