"""Decodes requests whose images take long, so that they cost the model's other clients no turn.

An instance decodes what it takes, and whoever comes next waits for that. A request of many million
pixels, or of a JPEG with many scans, would so keep everybody from a model whose handler is idle. Such a
request goes through a thread of the model's own, one after the other, and is offered to the instances
when its images lie in its batch.
"""

import logging
import threading
from collections import deque
from typing import Protocol

from ksrv._native.queue import request_queue as native
from ksrv._native.queue.stats import Tally
from ksrv.engine.batches.batch import Assembly
from ksrv.engine.batches.prefetch import fill
from ksrv.engine.ticket import QueuedTicket
from ksrv.errors import Overloaded
from ksrv.source import ModelConfig
from ksrv.spec import ModelSpec

log = logging.getLogger("ksrv.engine")


class Home(Protocol):
    """What is asked of the model version."""

    spec: ModelSpec
    config: ModelConfig
    queue: native.Queue
    tally: Tally

    def assembly(self, room: int = 0, instance: int = 0) -> Assembly:
        """Return an empty batch."""

    def offer(self, assembly: Assembly) -> None:
        """Have the next idle instance run a batch."""

    def full(self) -> Overloaded:
        """Return what a request is told while too many wait."""


class Apart:
    """The thread that decodes such requests; it lives while there are any.

    Args:
        home: The model version.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._changed = threading.Condition()
        self._waiting: deque[list[QueuedTicket]] = deque()
        self._works = False

    def take(self, tickets: list[QueuedTicket]) -> None:
        """Take over requests of one group; those for which there is no place are answered.

        Args:
            tickets: What the queue gave out.
        """
        with self._changed:
            room = len(self._waiting) < self._home.config.queue_size
            if room:
                self._waiting.append(tickets)
            if room and not self._works:
                self._works = True
                name = f"ksrv-{self._home.spec.name}-apart"
                threading.Thread(target=self._live, name=name, daemon=True).start()
        if not room:
            won = self._home.queue.finish(tickets, [self._home.full()] * len(tickets))
            self._home.tally.failed(sum(won))

    def wait(self) -> bool:
        """Wait until no request is decoded here, and tell whether there was one."""
        with self._changed:
            found = self._works
            self._changed.wait_for(lambda: not self._works)
            return found

    def _live(self) -> None:
        home = self._home
        while True:
            with self._changed:
                if not self._waiting:
                    self._works = False
                    self._changed.notify_all()
                    return
                tickets = self._waiting.popleft()
            try:
                assembly = home.assembly()
                fill(assembly, tickets, home.queue, home.tally)
                if assembly.tickets:
                    home.offer(assembly)
                del assembly, tickets
            except BaseException:  # the thread goes on: instances wait for it when they end
                log.exception("a request of the model %s cannot be decoded", home.spec.name)
