"""How the thread of a request waits for its answer in a gevent worker.

The engine waits in native code, which in a gevent worker would stop every other request of the
process. So there the call moves to gevent's pool of real threads. gevent is only looked for where a
worker has already patched the socket module.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ksrv.request import InferRequest, InferResponse

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.server.inference import Run


Result = TypeVar("Result")
Blocking = Callable[[Callable[[], Result]], Result]
"""Makes a call that waits, without stopping other requests."""


def _patched_by_gevent() -> bool:
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def _run_in_pool(engine: "Engine", request: InferRequest) -> InferResponse:
    from gevent import get_hub

    return cast(InferResponse, get_hub().threadpool.apply(engine.infer, (request,)))


def chosen_run(engine: "Engine") -> "Run":
    """Return the way to run a request that suits this worker.

    Args:
        engine: What runs it.
    """
    return partial(_run_in_pool, engine) if _patched_by_gevent() else engine.infer


def _call(waits: Callable[[], Result]) -> Result:
    return waits()


def _call_in_pool(waits: Callable[[], Result]) -> Result:
    from gevent import get_hub

    return cast(Result, get_hub().threadpool.apply(waits))


def chosen_blocking() -> Blocking[Any]:
    """Return the way to make a call that waits that suits this worker."""
    return _call_in_pool if _patched_by_gevent() else _call


def keep_threads_real() -> None:
    """Have gevent patch everything but threads, when a gevent worker patches this process.

    The engine's threads wait in native code; as greenlets they would stop the process.
    """
    from gevent import monkey

    monkey.patch_all = partial(monkey.patch_all, thread=False)
