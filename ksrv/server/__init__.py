"""The server: the Falcon app, the gunicorn worker, the gRPC servicer and their life cycle."""

from typing import Any


def __getattr__(name: str) -> Any:
    # gunicorn splits the name of a worker class only at dots. For `-k ksrv.server.worker:KsrvWorker` it asks this
    # package for the attribute "worker:KsrvWorker".
    module, colon, cls = name.partition(":")
    if module != "worker" or not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.worker"), cls)
