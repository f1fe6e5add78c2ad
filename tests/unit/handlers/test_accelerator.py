"""On a machine with a GPU: the model, its inputs and its answers are where they belong."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))
    def forward(self, x):
        return x * self.factor
"""
HANDLER = """
from ksrv import BaseHandler
class OnDevice(BaseHandler):
    def inference(self, x):
        assert str(x.device) == str(self.device) == "cuda:0", (x.device, self.device)
        assert self.context.system_properties["gpu_id"] == 0
        return super().inference(x)
"""
COMPILED = "pt2: {compile: {enable: true, mode: reduce-overhead}, required: true}"


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
@pytest.mark.parametrize("config", ["", COMPILED])
def test_a_model_runs_on_the_gpu_and_answers_in_memory(runner_of, batch_of, device, config):
    runner = runner_of(
        HANDLER, f"class: net.py:Net\ndevice: {device}\n{config}", files={"net.py": NET}
    )
    assert runner.handler.model.factor.device.type == "cuda"
    answers = [
        runner.run(batch_of(np.full((2, 2), value, np.float32))).tensors[0].data
        for value in (1, 2, 3, 4)
    ]
    # The answers of earlier batches are still theirs after later ones ran.
    assert [answer.tolist() for answer in answers] == [[[2 * v] * 2] * 2 for v in (1, 2, 3, 4)]


def test_instances_share_out_the_gpus(runner_of):
    count = torch.cuda.device_count()
    for instance in range(count + 1):
        runner = runner_of(
            HANDLER,
            "class: net.py:Net",
            files={"net.py": NET},
            name=f"m{instance}",
            instance=instance,
        )
        assert str(runner.handler.device) == f"cuda:{instance % count}"
