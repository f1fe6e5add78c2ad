"""The states of Triton's sequences if the requests of a batch cannot be run together."""

from types import SimpleNamespace

import numpy as np
import pytest

from ksrv.dialects.triton.declarations import DeclaredState, TritonDeclarations
from ksrv.dialects.triton.handlers.sequence_model import TritonSequenceModel

KEPT = DeclaredState(
    input="before", output="after", datatype="FP32", shape=(-1,), initial_shape=(0,)
)


class GrowsOrFails(TritonSequenceModel):
    """A state that grows by `x`; a negative state is an error."""

    def model(self, x, before):
        if x[0, 0] < 0:
            raise ValueError("negative")
        return {"y": x, "after": np.concatenate([before, x], axis=1)}


def model_of(*states):
    made = GrowsOrFails()
    sequences = [SimpleNamespace(state={"before": np.float32(state)}) for state in states]
    config = SimpleNamespace(
        dialect=TritonDeclarations(states=(KEPT,)).mapping(), batching=object()
    )
    spec = SimpleNamespace(outputs=(SimpleNamespace(name="y"),))
    batch = SimpleNamespace(sequences=sequences)
    made.context = SimpleNamespace(config=config, spec=spec, batch=batch, loaded=None)
    return made, sequences


def test_no_state_goes_on_where_a_row_fails():
    made, sequences = model_of([1], [2, 3])
    with pytest.raises(ValueError):
        made.inference(x=np.float32([[7], [-8]]))
    assert [one.state["before"].tolist() for one in sequences] == [[1], [2, 3]]
