"""The response cache of one model version: keeps answers, and returns them for equal requests.

Two requests are equal if their inputs (names, datatypes, shapes and bytes), their parameters and their requested
outputs are equal. Ids and headers do not count. An answer with headers of the handler may be meant for one client, and
is not kept. If a model calls other models and one of these changes, the engine calls `suspend` and `resume`: that
forgets the answers, and also drops answers that are still being computed.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from ksrv.engine.requests.handle import FutureHandle
from ksrv.handlers.diagnostics.debugging import PARAMETER as PROFILE
from ksrv.model.config import Cache
from ksrv.request import Element, InferRequest, InferResponse, Tensor


class ResponseCache:
    """The answers of one model version.

    Args:
        bounds: How many answers and bytes it may keep, and for how long.

    Attributes:
        generation: How often the cache was resumed. An answer of an earlier generation is outdated.
        nbytes: The bytes of the tensors in the cache.
    """

    def __init__(self, bounds: Cache) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        # By key: when the answer expires (`time.monotonic`), its bytes, and the answer. The least recently used is
        # first.
        self._known: OrderedDict[bytes, tuple[float, int, InferResponse]] = OrderedDict()
        self._suspended = False
        self.generation = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def key(self, request: InferRequest) -> bytes | None:
        """Return the key of a request; None for a request that must always be run.

        Such requests stream, name a sequence, have outputs in shared memory or the form of a dialect, or ask for a
        profile, which only their client may see.
        """
        if request.stream is not None or request.dialect:
            return None
        if "sequence_id" in request.parameters or PROFILE in request.parameters:
            return None
        if any(output.shared_memory is not None for output in request.outputs):
            return None
        digest = hashlib.blake2b(digest_size=32)
        outputs = [
            (output.name, output.classification, sorted(output.parameters.items()))
            for output in request.outputs
        ]
        asked = (request.explain, sorted(request.parameters.items()), outputs, len(request.inputs))
        digest.update(repr(asked).encode("utf-8", "surrogatepass"))
        for tensor in request.inputs:
            facts = (tensor.name, tensor.datatype, tensor.shape, sorted(tensor.parameters.items()))
            digest.update(repr(facts).encode("utf-8", "surrogatepass"))
            if isinstance(tensor.data, np.ndarray):
                digest.update(np.ascontiguousarray(tensor.data).view(np.uint8).data)
                continue
            for element in tensor.data:
                digest.update(len(element).to_bytes(8, "little"))
                digest.update(element)
        return digest.digest()

    def find(self, key: bytes, request: InferRequest) -> FutureHandle | None:
        """Return the cached answer to a request, with the id of the request; None if no fresh answer is cached."""
        now = time.monotonic()
        with self._lock:
            found = self._known.get(key)
            if found is not None and found[0] <= now:
                self._drop(key)
                found = None
            if found is None:
                return None
            self._known.move_to_end(key)
        known = found[2]
        answer: Future[InferResponse] = Future()
        answer.set_result(
            replace(known, id=request.id, timings={}, parameters=dict(known.parameters))
        )
        return FutureHandle(answer)

    def keep(self, key: bytes, generation: int, response: InferResponse) -> None:
        """Cache an answer; the least recently used answers make room.

        Args:
            generation: The generation of the cache when the request arrived.
            response: The answer; its tensors and parameters are copied.
        """
        nbytes = sum(tensor.nbytes for tensor in response.outputs)
        bounds = self._bounds
        if nbytes > bounds.bytes or response.headers:
            return
        kept = replace(
            response,
            id="",  # each request has another id, and it may be long
            outputs=[_copied(tensor) for tensor in response.outputs],
            parameters=dict(response.parameters),
        )
        until = time.monotonic() + bounds.ttl_s
        with self._lock:
            if self._suspended or generation != self.generation:
                return
            if key in self._known:
                self._drop(key)
            self._known[key] = (until, nbytes, kept)
            self.nbytes += nbytes
            while len(self._known) > bounds.entries or self.nbytes > bounds.bytes:
                self._drop(next(iter(self._known)))

    def suspend(self) -> None:
        """Forget every answer, and keep none until `resume`."""
        with self._lock:
            self._suspended = True
            self._known.clear()
            self.nbytes = 0

    def resume(self) -> None:
        """Keep answers again, but only of requests that arrive from now on."""
        with self._lock:
            self._suspended = False
            self.generation += 1

    def _drop(self, key: bytes) -> None:
        self.nbytes -= self._known.pop(key)[1]


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in memory that only the cache refers to and that cannot be written to."""
    if isinstance(tensor.data, np.ndarray):
        data = tensor.data.copy()
        data.flags.writeable = False
        return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)
    elements: list[Element] = [bytes(element) for element in tensor.data]
    return Tensor(tensor.name, tensor.datatype, tensor.shape, elements, tensor.parameters)
