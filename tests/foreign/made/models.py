"""Pictures of smooth random colours, and the handlers that replace other projects' models."""

import shutil
from pathlib import Path

import cv2
import numpy as np

PORTS = Path(__file__).parent / "ports"


def photo(path: Path, width: int = 320, height: int = 240, seed: int = 3) -> Path:
    colours = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.resize(colours, (width, height), interpolation=cv2.INTER_CUBIC))
    return path


def port(name: str, folder: Path) -> Path:
    """Copy a model that was written again as a handler, and return its folder."""
    target = folder / name
    shutil.copytree(PORTS / name, target)
    return target
