"""The handler of stateful models, whose files keep a state in variables: each sequence gets a separate state."""

from typing import Any

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch

STATES = "states"
"""The key of the model's variables in the state of a sequence."""


class StatefulModel(BaseHandler):
    """Runs the model on one request of a sequence, with the variables that the sequence's last request left."""

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs by name."""
        return {name: batch[name] for name in batch}

    def inference(self, /, **inputs: Any) -> dict[str, Any]:
        """Run the model.

        Returns:
            The outputs by name.
        """
        sequence = self.context.batch.sequences[0]
        # None at the start of the sequence: the initial values.
        self.model.set_states(sequence.state.get(STATES))
        outputs: dict[str, Any] = self.model(**inputs)
        sequence.state[STATES] = self.model.states()
        return outputs
