"""An ensemble of a Triton repository: each request goes from model to model, as its steps say.

The calls are those of composition: through the other models' queues, joined there with the requests
of other clients, with the deadline of the ensemble's request. A step runs as soon as its tensors are
there, so that independent steps run side by side, and many requests are under way at a time. The sequence of
a request is that of its calls, for steps whose models serve sequences.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch
from ksrv.handlers.models import array_of
from ksrv.handlers.outputs import BFloat16Bits
from ksrv.request import Tensor
from ksrv.source import EnsembleStep

SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")


class Ensemble(BaseHandler):
    """Serves an ensemble; it has no model of its own."""

    calls_models = True

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs by name, as the first steps take them.

        Args:
            batch: One request.
        """
        bits = {name for name in batch if batch.datatype(name) == "BF16"}
        tensors = {
            name: BFloat16Bits(batch[name]) if name in bits else batch[name] for name in batch
        }
        return {"tensors": tensors}

    async def inference(self, *, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Run the steps.

        Args:
            tensors: The inputs by name.

        Returns:
            The ensemble's outputs by name.

        Raises:
            KsrvError: The error of the first step that failed; the others are cancelled.
        """
        steps = self.context.config.ensemble
        loop = asyncio.get_running_loop()
        found: dict[str, asyncio.Future[Any]] = {}
        for name in (*tensors, *(name for step in steps for name in step.outputs.values())):
            found[name] = loop.create_future()
        for name, value in tensors.items():
            found[name].set_result(value)
        running = [loop.create_task(self._run(step, found)) for step in steps]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
        return {spec.name: _value(found[spec.name].result()) for spec in self.context.spec.outputs}

    async def _run(self, step: EnsembleStep, found: Mapping[str, asyncio.Future[Any]]) -> None:
        inputs = {own: await found[tensor] for own, tensor in step.inputs.items()}
        given = self.context.batch.requests[0].parameters
        call = self.context.models[step.model].submit(
            inputs,
            version=step.version,
            outputs=tuple(step.outputs),
            parameters={name: given[name] for name in SEQUENCE_PARAMETERS if name in given},
        )
        outputs = await call.tensors()
        for own, tensor in step.outputs.items():
            found[tensor].set_result(outputs[own])


def _value(tensor: Any) -> Any:
    """Return what a step gave as handlers return it; an input that is an output is as it came."""
    if not isinstance(tensor, Tensor):
        return tensor
    array = array_of(tensor)
    return BFloat16Bits(array) if tensor.datatype == "BF16" else array
