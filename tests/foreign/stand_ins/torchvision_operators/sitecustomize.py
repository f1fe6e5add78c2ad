"""Has torchvision's wheel for CUDA import beside torch's for the CPU, whose libraries it does not find.

The wheel cannot load its operators then, and its import stops where it describes two of them. They are declared here
before the import, without code: no network of the examples that run calls them.
"""

import ctypes
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class Declares:
    """Finds nothing, but declares the operators before torchvision is found by others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torchvision":
            return
        sys.meta_path.remove(Declares)
        found = PathFinder.find_spec(name, path)
        if found is not None and not loads(Path(found.origin).parent / "_C.so"):
            import torch

            Declares.library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                Declares.library.define(
                    f"{name}(Tensor dets, Tensor scores, float least) -> Tensor"
                )
        return


def loads(library):
    """Return whether a library of torch's loads."""
    import torch  # noqa: F401 - its loaded libraries are searched

    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


if importlib.util.find_spec("torchvision") is not None:
    sys.meta_path.insert(0, Declares)
