"""Finds the files of tabular models, and completes their settings.

No library is imported here: the server reads settings, and a handler process may load the model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ksrv.model.config import JoinPolicy, ModelConfig
from ksrv.model.fault import Fault
from ksrv.model.spec import LARGEST_SIZE

LOADER = "ksrv.dialects.tabular.loader"
"""The module that loads such a model: the value of `ModelConfig.runtime`."""
NAME = "tabular"
"""The key in `ModelConfig.dialect`, for a mapping with `library` and `trusted`."""
SKLEARN, XGBOOST, LIGHTGBM, CATBOOST = "sklearn", "xgboost", "lightgbm", "catboost"
BATCH = JoinPolicy(max_batch_size=1024)
"""How requests are joined by default. A larger request runs alone."""
_START = 4096
"""Bytes at the start of a file that tell what it is."""


def _starts_with(mark: bytes) -> Callable[[bytes], bool]:
    return lambda start: start.startswith(mark)


LIBRARIES: Mapping[str, tuple[str, Callable[[bytes], bool]]] = {
    ".ubj": (XGBOOST, _starts_with(b"{")),
    ".json": (XGBOOST, lambda start: b'"learner"' in start and start.lstrip().startswith(b"{")),
    ".txt": (LIGHTGBM, _starts_with(b"tree")),
    ".cbm": (CATBOOST, _starts_with(b"CBM1")),
    ".skops": (SKLEARN, _starts_with(b"PK")),
    ".joblib": (SKLEARN, bool),
    ".pkl": (SKLEARN, bool),
}
"""The library of the files with a suffix, and whether a file is a model, by its first bytes."""


class TableFiles:
    """The `FileReader` of tabular models."""

    suffixes = tuple(LIBRARIES)

    def is_model(self, path: Path) -> bool:
        """See `FileReader.is_model`."""
        try:
            with path.open("rb") as file:
                return LIBRARIES[path.suffix][1](file.read(_START))
        except OSError:
            return False

    def adopt(self, config: ModelConfig) -> ModelConfig:
        """See `FileReader.adopt`."""
        return table_config(config)


def table_config(config: ModelConfig, library: str = "") -> ModelConfig:
    """Return the settings of a tabular model, with its loader.

    Args:
        config: The settings that the user gave. `model` is the file.
        library: `SKLEARN`, `XGBOOST`, `LIGHTGBM` or `CATBOOST`; "" chooses by the suffix of the file.

    Raises:
        Fault: The file is a pickle, and the settings do not trust it; or they ask for another device than the CPU.
    """
    file = Path(config.model or "")
    library = library or LIBRARIES[file.suffix][0]
    if config.device not in ("auto", "cpu"):
        raise Fault(("device",), f"{file.name} is served on the CPU; leave it out, or write cpu")
    settings: dict[str, Any] = {"runtime": LOADER, "device": "cpu"}
    if is_pickle(file, library) or config.trust is not None:
        settings["executor"] = _pickle_executor(config, file, library)
    # Matrix products of scikit-learn may round a row differently in another batch. Trees never do.
    if library != SKLEARN and "batching" not in config.given and config.counts_rows:
        settings |= {"batching": BATCH, "row_limit": LARGEST_SIZE}
    options = {"library": library, "trusted": config.trust is not None}
    return replace(config, dialect={**config.dialect, NAME: options}, **settings)


def is_pickle(file: Path, library: str) -> bool:
    """Tell whether loading a file runs code in it."""
    return library == SKLEARN and file.suffix != ".skops"


def untrusted(file: Path) -> str:
    """Return why a pickle is not loaded."""
    return (
        f"{file.name} is a pickle, and loading a pickle runs the code in it. If you trust it, put it into a folder "
        f"with a model.yaml of the lines 'model: {file.name}' and 'trust: pickle': a handler process then loads it. "
        f"Or save the model as .skops with skops.io.dump: such a file runs no code"
    )


def _pickle_executor(config: ModelConfig, file: Path, library: str) -> str:
    """Return the executor of a model whose file is a pickle, or may be treated as one."""
    if config.trust is None:
        raise Fault(("trust",), untrusted(file))
    if library != SKLEARN:
        raise Fault(("trust",), f"is for pickles, and {file.name} is not a pickle; leave it out")
    if "executor" in config.given and config.executor != "process":
        raise Fault(
            ("executor",), "a pickle is loaded in a handler process; write process, or leave it out"
        )
    return "process"
