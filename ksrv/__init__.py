"""An inference server for the KServe v2 protocol, with a Cython core and four-stage handlers.

Everything that a handler's author needs is importable from here; everything else lies in the package
that its subject names. Importing this package loads neither torch nor grpc.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksrv.errors import InferenceError
    from ksrv.handlers.base import BaseHandler
    from ksrv.handlers.batch import Batch
    from ksrv.handlers.context import Context
    from ksrv.handlers.timing import timed

__version__ = "0.1.0"

__all__ = ["BaseHandler", "Batch", "Context", "InferenceError", "__version__", "timed"]

_HOME = {
    "BaseHandler": "ksrv.handlers.base",
    "Batch": "ksrv.handlers.batch",
    "Context": "ksrv.handlers.context",
    "InferenceError": "ksrv.errors",
    "timed": "ksrv.handlers.timing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ksrv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
