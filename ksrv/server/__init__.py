"""The server: the Falcon app, the gunicorn worker, the gRPC servicer and their life cycle."""

from typing import Any


def __getattr__(name: str) -> Any:
    # gunicorn takes class names apart at dots alone, so that `-k ksrv.server.worker:KsrvWorker` asks
    # this package for an attribute of that odd name.
    module, colon, cls = name.partition(":")
    if module != "worker" or not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.worker"), cls)
