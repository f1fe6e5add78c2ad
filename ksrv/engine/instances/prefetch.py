"""Joins the next batch while every instance still runs one.

If joining takes time (images are decoded, large tensors copied), an instance should find its next
batch ready. So this thread takes requests ahead, and fills its open batch up with the requests that
arrive as long as no instance is idle; then it publishes the batch. While an instance is idle, the
thread takes nothing: the instance takes the queued requests itself.
"""

import threading

from ksrv.engine.instances.host import InstanceHost


class Prefetcher(threading.Thread):
    """The thread that joins batches ahead for one model version."""

    def __init__(self, host: InstanceHost) -> None:
        super().__init__(name=f"ksrv-{host.spec.name}-ahead", daemon=True)
        self._host = host

    def run(self) -> None:
        """Fill batches until the model's queue is closed and empty."""
        host = self._host
        most = max(host.spec.max_batch_size, 1)
        while True:
            taken = host.queue.prefetch(most, most)
            if taken is None:
                return
            batch = host.new_batch(most)
            published = False
            try:
                while taken is not True and taken is not None:
                    host.fill(batch, taken, host.stats)
                    oldest = batch.handles[0].enqueued_ns if batch.handles else 0
                    taken = host.queue.prefetch(most, most, batch.rows, oldest, host.delay_ns)
                published = bool(batch.handles)
                if published:
                    host.publish_open(batch)
            finally:
                if not published:
                    host.queue.close_open_batch(False)
