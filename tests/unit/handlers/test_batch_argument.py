"""Which stages get the batch in a parameter named `batch`."""

import numpy as np
import pytest

X = np.arange(6, dtype=np.float32).reshape(3, 2)

STAGES = {
    "inference beside its value": """
        def inference(self, x, batch):
            return x + len(batch.requests)
    """,
    "inference by keyword only": """
        def inference(self, x, *, batch):
            return x + len(batch.requests)
    """,
    "inference without a value": """
        def inference(self, batch):
            return batch["x"] + len(batch.requests)
    """,
    "postprocess": """
        def inference(self, x):
            return x
        def postprocess(self, outputs, batch):
            return outputs + len(batch.requests)
    """,
    "a value that is called batch": """
        def preprocess(self, batch):
            return batch["x"] + len(batch.requests)
        def inference(self, batch):
            return batch
    """,
    "a batch that preprocess passed on": """
        def preprocess(self, batch):
            return batch
        def inference(self, inputs, batch):
            assert inputs is batch
            return batch["x"] + len(batch.requests)
    """,
    "a custom handle": """
        def handle(self, batch, context):
            return self.inference(batch["x"])
        def inference(self, x, batch):
            return x + len(batch.requests)
    """,
    "a subclass that passes it on": """
        def inference(self, x, batch, extra=0):
            return x + len(batch.requests) + extra
        def postprocess(self, outputs):
            return self.inference(outputs, batch=self.context.batch, extra=-2)
    """,
}


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_a_stage_that_asks_for_the_batch_gets_it(runner_of, batch_of, stages):
    runner = runner_of(f"from ksrv import BaseHandler\nclass H(BaseHandler):{stages}")
    for _ in range(2):  # each batch anew
        [output] = runner.run(batch_of(X[:1], X[1:])).tensors
        assert output.data.tolist() == (X + 2).tolist()


@pytest.mark.parametrize(
    "function",
    [
        "def inference(x, batch): return x + len(batch.requests)",
        "def inference(batch): return batch['x'] + len(batch.requests)",
        "def inference(*, batch): return batch['x'] + len(batch.requests)",
    ],
)
def test_a_function_that_asks_for_the_batch_gets_it(runner_of, batch_of, function):
    [output] = runner_of(function).run(batch_of(X[:1], X[1:])).tensors
    assert output.data.tolist() == (X + 2).tolist()


def test_an_input_called_batch_wins(runner_of, batch_of):
    handler = """
    def inference(x, batch):
        assert type(batch).__name__ == "ndarray"
        return x + batch
    """
    [output] = runner_of(handler).run(batch_of(X, batch=X)).tensors
    assert output.data.tolist() == (X + X).tolist()


def test_other_stages_are_left_as_they_are(runner_of):
    runner = runner_of(
        "from ksrv import BaseHandler\nclass H(BaseHandler):\n  def inference(self, x): return x"
    )
    assert not {"inference", "postprocess"} & set(vars(runner.handler))
