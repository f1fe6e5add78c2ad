"""Serving under gunicorn's gevent worker.

The engine waits in native code, which would stop every greenlet of the process. So calls that block move
to gevent's pool of real threads, and gevent does not patch threads. gevent itself is only imported where
a worker has patched the socket module already.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ksrv.request import InferRequest, InferResponse
from ksrv.server.http.client_watch import ClientConnection, Result, ThreadWaiter

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine


class GeventWaiter(ThreadWaiter):
    """Waits on a real thread of gevent's pool, so that the other greenlets go on."""

    def client_of(self, environ: Mapping[str, Any]) -> ClientConnection | None:
        """Return None: a greenlet's socket belongs to its hub."""
        return None

    def infer(
        self, engine: "Engine", request: InferRequest, client: ClientConnection | None
    ) -> InferResponse:
        """See `ThreadWaiter.infer`."""
        return self.call(partial(engine.infer, request))

    def call(self, function: Callable[[], Result]) -> Result:
        """See `ThreadWaiter.call`."""
        from gevent import get_hub

        return cast(Result, get_hub().threadpool.apply(function))


def choose_waiter() -> ThreadWaiter:
    """Return the waiter that suits this process's worker."""
    monkey: Any = sys.modules.get("gevent.monkey")
    patched = monkey is not None and monkey.is_module_patched("socket")
    return GeventWaiter() if patched else ThreadWaiter()


def exclude_threads() -> None:
    """Have gevent patch neither threads nor subprocess, when a gevent worker patches this process.

    Threads start and watch the handler processes, which gevent's subprocess leaves to its own loop's thread.
    """
    from gevent import monkey

    monkey.patch_all = partial(monkey.patch_all, thread=False, subprocess=False)
