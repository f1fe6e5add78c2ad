"""Tests of models and handlers: in this process, stage by stage, or with a real server.

Importing this package imports none of its modules: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksrv.errors import KsrvError
    from ksrv.testing.models import Answer, LoadFailed, Model, load
    from ksrv.testing.server import Server, ServerFailed
    from ksrv.testing.stages import batch, context

__all__ = [
    "Answer",
    "KsrvError",
    "LoadFailed",
    "Model",
    "Server",
    "ServerFailed",
    "batch",
    "context",
    "load",
]

_MODULES = {
    "KsrvError": "ksrv.errors",
    "Server": "ksrv.testing.server",
    "ServerFailed": "ksrv.testing.server",
    "batch": "ksrv.testing.stages",
    "context": "ksrv.testing.stages",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ksrv.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "ksrv.testing.models")), name)
