"""The keys of a `model.yaml` beside the files of an archive."""

from typing import Annotated

from ksrv.model.config import ModelConfig
from ksrv.repository.settings.keys import MillisecondsOrNone, means, section

UnpackedKeys = section(
    "UnpackedKeys",
    ModelConfig,
    shared=True,
    torchserve=Annotated[bool, means("Whether the folder holds an archive's files")],
    timeout_ms=MillisecondsOrNone,
)
