"""The formats of other servers whose models are served: the list of their readers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ksrv.dialects.openvino.server_config import FORMAT as OPENVINO
from ksrv.dialects.torchserve.archive.format import FORMAT as TORCHSERVE
from ksrv.dialects.triton.config.model_config import FORMAT as TRITON
from ksrv.repository.entry import ModelEntry
from ksrv.repository.format import Formats

FORMATS = Formats((TORCHSERVE, TRITON, OPENVINO))


def archive_readers(defaults: Any = None) -> dict[str, Callable[[Path, str], ModelEntry]]:
    """Return what `Repository` is given so that it serves archives, by the suffixes of their names.

    Args:
        defaults: The defaults for keys that an archive leaves out.
    """
    return {
        suffix: partial(reader.read, defaults=defaults)
        for reader in FORMATS.archives
        for suffix in reader.suffixes
    }
