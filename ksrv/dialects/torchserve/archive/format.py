"""TorchServe's readers, as the model repository asks for them."""

from pathlib import Path
from typing import Any

from ksrv.dialects.torchserve.archive.archive import ARCHIVE_SUFFIXES, MANIFEST
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
    suffixes = ARCHIVE_SUFFIXES
    mark = str(MANIFEST)

    def read(self, path: Path, name: str, defaults: Any = None) -> ModelEntry:
        return read_archive(path, name, defaults)


class _Handlers:
    key = "torchserve"
    keys = UnpackedKeys

    def read(self, document: Document, folder: Path) -> ModelConfig:
        keys = document.convert(UnpackedKeys, document.value)
        return read_unpacked(keys, shared_settings(keys), folder)

    adopt = staticmethod(as_torchserve)


FORMAT = Format(archives=_Archives(), handlers=_Handlers())
