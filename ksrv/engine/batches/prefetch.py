"""Assembles the next batch while every instance still runs one.

Where assembling takes time (images are decoded, large tensors copied), an instance should find its
next batch ready. So this thread takes requests ahead, and tops its open batch up with those that
arrive as long as no instance is idle; then the batch is offered. While an instance is idle it stays
out of the way: the instance takes what is queued by itself.
"""

import logging
import threading
from typing import Protocol

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.stats import Tally
from ksrv.engine.batches.batch import Assembly
from ksrv.engine.ticket import QueuedTicket
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")


class Home(Protocol):
    """What an assembler asks of the model version that it belongs to."""

    spec: ModelSpec
    queue: native.Queue
    delay_ns: int
    tally: Tally

    def assembly(self, room: int) -> Assembly:
        """Return an empty batch that may grow to `room` rows."""

    def offer_open(self, assembly: Assembly) -> None:
        """Have an idle instance run the open batch."""


class Assembler:
    """The thread that assembles ahead for one model version.

    Args:
        home: The model version.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._thread = threading.Thread(
            target=self._live, name=f"ksrv-{home.spec.name}-ahead", daemon=True
        )

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end; it does once the model's queue is closed and empty.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether it has ended.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _live(self) -> None:
        home = self._home
        most = max(home.spec.max_batch_size, 1)
        while True:
            taken = home.queue.take_ahead(most, most)
            if taken is None:
                return
            assembly = home.assembly(most)
            offered = False
            try:
                while taken is not True and taken is not None:
                    fill(assembly, taken, home.queue, home.tally)
                    oldest = assembly.tickets[0].enqueued_ns if assembly.tickets else 0
                    taken = home.queue.take_ahead(most, most, assembly.rows, oldest, home.delay_ns)
                offered = bool(assembly.tickets)
                if offered:
                    home.offer_open(assembly)
            finally:
                if not offered:
                    home.queue.close_open_batch(False)


def fill(
    assembly: Assembly, tickets: list[QueuedTicket], queue: native.Queue, tally: Tally
) -> None:
    """Add requests to a batch, and answer those that cannot be added.

    Args:
        assembly: The batch.
        tickets: Requests that the queue gave out.
        queue: The queue.
        tally: Counts those that cannot be added.
    """
    known = len(assembly.tickets)
    try:
        assembly.add(tickets)
    except BaseException as error:
        shown: KsrvError
        if isinstance(error, KsrvError):
            shown = error
        else:
            log.error("a batch cannot be assembled", exc_info=error)
            shown = HandlerFailed(f"the batch cannot be assembled: {type(error).__name__}.")
        assembly.truncate(known)
        queue.finish(tickets, [shown] * len(tickets))
        tally.failed(len(tickets))
        return
    if assembly.failed:
        failed = [ticket for ticket, _ in assembly.failed]
        won = queue.finish(failed, [error for _, error in assembly.failed])
        tally.failed(sum(won))  # those that had ended before are counted as what they are
        assembly.failed.clear()
