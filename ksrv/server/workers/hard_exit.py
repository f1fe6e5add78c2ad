"""The last step of a worker whose handlers have not come back.

Python ends all other threads while it finalizes, at the moment when they ask for the GIL, by unwinding
their stacks. Native code that a handler is in may not be unwound, torch's for one: the process would
abort. So a process that leaves handlers behind ends without being finalized.
"""

import logging
import os
import sys

log = logging.getLogger(__name__)


def leave_handlers_behind() -> None:
    """End this process at once where instances still run a handler, with the status it was to have."""
    from ksrv.engine.instances.instance import instances_left

    left = instances_left()
    if left == 0:
        return
    log.warning("%d instances have not come back from their handlers; the worker ends", left)
    leaving = sys.exception()
    status = leaving.code if isinstance(leaving, SystemExit) else 0
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else 0)
