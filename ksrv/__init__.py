"""An inference server for the KServe v2 protocol, with a Cython core and four-stage handlers.

Everything that a handler's author needs is importable from here; everything else is in the package
of its subject. Importing this package loads neither torch nor grpc.
"""

from importlib.machinery import EXTENSION_SUFFIXES as _SUFFIXES
from os.path import dirname as _dirname
from os.path import exists as _exists
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksrv.errors import InferenceError, KsrvError
    from ksrv.handlers.base import BaseHandler
    from ksrv.handlers.batch import Batch
    from ksrv.handlers.builtin.image_classifier import ImageClassifier
    from ksrv.handlers.builtin.image_segmenter import ImageSegmenter
    from ksrv.handlers.builtin.object_detector import ObjectDetector
    from ksrv.handlers.builtin.text_classifier import TextClassifier
    from ksrv.handlers.context import Context
    from ksrv.handlers.declared.checked_types import (
        BFloat16,
        Bool,
        Bytes,
        Float16,
        Float32,
        Float64,
        Image,
        Int8,
        Int16,
        Int32,
        Int64,
        Uint8,
        Uint16,
        Uint32,
        Uint64,
    )
    from ksrv.handlers.declared.settings import settings
    from ksrv.handlers.diagnostics.timing import timed
    from ksrv.notebook.serving import serve

__version__ = "0.1.0"

__all__ = [
    "BFloat16",
    "BaseHandler",
    "Batch",
    "Bool",
    "Bytes",
    "Context",
    "Float16",
    "Float32",
    "Float64",
    "Image",
    "ImageClassifier",
    "ImageSegmenter",
    "InferenceError",
    "Int16",
    "Int32",
    "Int64",
    "Int8",
    "KsrvError",
    "ObjectDetector",
    "TextClassifier",
    "Uint16",
    "Uint32",
    "Uint64",
    "Uint8",
    "__version__",
    "serve",
    "settings",
    "timed",
]

# Imported on first use, so that `import ksrv` loads neither numpy nor a framework. The names of
# datatypes are missing here: `__getattr__` takes them from `tensor_types`.
_HOME = {
    "BaseHandler": "ksrv.handlers.base",
    "Batch": "ksrv.handlers.batch",
    "Context": "ksrv.handlers.context",
    "ImageClassifier": "ksrv.handlers.builtin.image_classifier",
    "ImageSegmenter": "ksrv.handlers.builtin.image_segmenter",
    "InferenceError": "ksrv.errors",
    "KsrvError": "ksrv.errors",
    "ObjectDetector": "ksrv.handlers.builtin.object_detector",
    "TextClassifier": "ksrv.handlers.builtin.text_classifier",
    "serve": "ksrv.notebook.serving",
    "settings": "ksrv.handlers.declared.settings",
    "timed": "ksrv.handlers.diagnostics.timing",
}


# If Python runs beside a source folder whose core is not built, this folder hides an installed ksrv.
# The installed ksrv is then used instead.
if not any(_exists(f"{_dirname(__file__)}/_native/_core{suffix}") for suffix in _SUFFIXES):
    from ksrv.installation import use_installed

    use_installed()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(_missing(name))
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    from ksrv.handlers.declared.tensor_types import TYPES

    return TYPES[name]


def _missing(name: str) -> str:
    from difflib import get_close_matches  # here, as only a mistake needs it

    meant = get_close_matches(name, __all__, n=1, cutoff=0.5)
    hint = f"; did you mean {meant[0]!r}?" if meant else ""
    return f"module 'ksrv' has no attribute {name!r}{hint}"
