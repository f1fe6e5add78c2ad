"""Finds out which kind of torch file a file is, without running code in it, and explains why a loader refused it."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ksrv.loaders.loaded import ModelLoadError, short

Kind = Literal["TorchScript", "saved", "exported", "compiled", "damaged", "other"]

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


def kind_of(path: Path) -> Kind:
    """Return the kind of a file. "saved" is a file of `torch.save`; "damaged" is a zip file without its end."""
    with path.open("rb") as file:
        first = file.read(len(_ZIP))
    if first.startswith(_PICKLE):
        return "saved"
    if not _ZIP.startswith(first):
        return "other"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return "damaged"
    if any(name.endswith("/constants.pkl") for name in names):
        return "TorchScript"
    if any("data/aotinductor/" in name for name in names):
        return "compiled"
    if any("/models/" in name or "serialized_exported_program" in name for name in names):
        return "exported"
    return "saved" if any(name.endswith("/data.pkl") for name in names) else "other"


def refused(path: Path, expected: str, reason: str) -> ModelLoadError:
    """Return the error for a file that is not of the kind that a loader expects.

    Args:
        expected: The kind that the loader reads: "TorchScript", "weights", "torch.export".
        reason: torch's error, which is used if the kind of the file does not explain the failure.
    """
    kind = kind_of(path)
    if kind == "damaged":
        return ModelLoadError(
            f"{path} is cut off or damaged: it begins as torch's files do, and its end is missing "
            f"({path.stat().st_size} bytes); copy or save it again"
        )
    if kind == "TorchScript" and expected != "TorchScript":
        return ModelLoadError(
            f"{path} is TorchScript, which contains its code; take class: out of model.yaml, and call it .pt"
        )
    if kind in ("exported", "compiled"):
        return ModelLoadError(f"{path} is a program of torch.export; call it .pt2")
    if kind == "saved" and expected == "TorchScript":
        return _saved(path)
    if kind != "other":
        return ModelLoadError(f"{path} cannot be read: {reason}; copy it or save it again")
    cause = reason.partition(". ")[0]  # without torch's advice, which is about torch.load
    return ModelLoadError(f"{path} is not a file of {expected}: {cause}; copy it or save it again")


def pickled(path: Path, reason: str) -> ModelLoadError:
    """Return the error for a file that contains pickled Python objects."""
    return ModelLoadError(
        f"{path} holds pickled objects, which ksrv never loads, and not weights alone "
        f"({reason}); save the module's state_dict()"
    )


def unpickling_reason(error: Exception) -> str:
    """Return the part of torch's long advice that names the fault.

    Args:
        error: The error of `torch.load`.
    """
    text = " ".join(str(error).split())
    for mark in ("Unsupported global: ", "Unsupported operand ", "Unsupported class "):
        start = text.find(mark)
        if start >= 0:
            break
    return text[start:].partition(" Please")[0][:160] if start >= 0 else type(error).__name__


def _saved(path: Path) -> ModelLoadError:
    """Return the error for a file of `torch.save` that was loaded as TorchScript."""
    import torch

    try:
        found = torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        return pickled(path, unpickling_reason(error))
    except Exception as error:  # noqa: BLE001  on other bytes its readers raise any exception
        return ModelLoadError(
            f"{path} is not a file of torch's: {short(error)}; copy it or save it again"
        )
    what = "weights only (a state_dict)" if isinstance(found, Mapping) else type(found).__name__
    return ModelLoadError(
        f"{path} holds {what}, and no TorchScript; add class: net.py:Net to model.yaml, the class or function that "
        f"builds the network"
    )
