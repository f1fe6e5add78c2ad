"""How the thread of a request waits for its answer in a gevent worker.

The engine waits in native code, which in a gevent worker would stop every other request of the
process. So there the call moves to gevent's pool of real threads. gevent is only looked for where a
worker has already patched the socket module.
"""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ksrv.request import InferRequest, InferResponse

if TYPE_CHECKING:
    from ksrv.engine.engine import Engine
    from ksrv.server.inference import Run


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


def keep_threads_real() -> None:
    """Have gevent patch everything but threads, when a gevent worker patches this process.

    The engine's threads wait in native code; as greenlets they would stop the process.
    """
    from gevent import monkey

    monkey.patch_all = partial(monkey.patch_all, thread=False)
