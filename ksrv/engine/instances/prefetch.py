"""Joins the next batch while every instance still runs one.

If joining takes time (images are decoded, large tensors copied), an instance should find its next
batch ready. So this thread takes queued requests while no instance is idle, and adds each request
that arrives to its open batch. As soon as an instance is idle, the thread publishes the batch for it.
While an instance is idle, the thread takes nothing: the instance takes the queued requests itself.
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
        most = max(host.spec.max_batch_size, 1)  # of requests and of rows in a batch
        while True:
            taken = host.queue.prefetch(most, most)
            if taken is None:
                return
            batch = host.new_batch(most)
            published = False
            try:
                # True: the batch must be closed, because an instance is idle. None: the queue is closed and empty; the
                # batch is still run, and the next `prefetch` returns None again.
                while taken is not True and taken is not None:
                    host.fill(batch, taken, host.stats)
                    oldest = batch.handles[0].enqueued_ns if batch.handles else 0
                    taken = host.queue.prefetch(most, most, batch.rows, oldest, host.delay_ns)
                published = bool(batch.handles)
                if published:
                    host.publish_open(batch)
            finally:
                if not published:  # ends this thread's turn without a batch
                    host.queue.close_open_batch(False)
