"""On a machine with a GPU: models, inputs and answers are on the right device, and nothing waits too early."""

import logging
import threading

import numpy as np
import pytest
import torch

from ksrv._native.memory import buffer_pool
from ksrv.errors import Overloaded
from ksrv.handlers.devices.cuda import CudaDevice
from tests.support.devices.nets import NET

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

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
    # Answers of earlier batches stay valid after later batches ran.
    assert [answer.tolist() for answer in answers] == [[[2 * v] * 2] * 2 for v in (1, 2, 3, 4)]


LAYERS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )
    def forward(self, x):
        return self.layers(x)
"""


def profile_of(runner, batch):
    """Return the copies and waits of one batch, by the profiler's names."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        runner.run(batch)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    copies = sorted(name for name in names if name.startswith("Memcpy"))
    waits = [name for name in names if name in ("cudaStreamSynchronize", "cudaEventSynchronize")]
    return copies, waits


@pytest.mark.parametrize("graphs", ["false", "true"])
def test_a_batch_is_two_pinned_copies_and_one_wait(runner_of, batch_of, graphs):
    runner = runner_of(
        HANDLER, f"class: net.py:Net\ncuda_graphs: {graphs}", files={"net.py": LAYERS}
    )
    for _ in range(3):  # pin the blocks and warm up the libraries
        runner.run(batch_of(np.ones((64, 512), np.float32)))
    array = buffer_pool.array(runner.lease(64 * 512 * 4), "<f4", (64, 512))
    array[:] = 1
    batch = batch_of(np.ones((64, 512), np.float32))
    batch.tensors["x"].data = array
    runner.run(batch)
    copied = buffer_pool.copied_bytes()
    copies, waits = profile_of(runner, batch)
    between = [name for name in copies if "Device -> Device" not in name]
    assert between == ["Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"]
    assert len(waits) == 1
    assert buffer_pool.copied_bytes() == copied


def test_each_instance_has_a_stream_and_does_not_wait_for_another(runner_of, batch_of):
    source = """
    import torch
    from ksrv import BaseHandler
    class Slow(BaseHandler):
        def inference(self, x):
            if float(self.context.batch["x"][0, 0]) > 0:
                torch.cuda._sleep(3_000_000_000)
            return super().inference(x)
    """
    runners = [
        runner_of(source, "class: net.py:Net\ndevice: cuda:0", files={"net.py": NET}, name=name)
        for name in ("slow", "quick")
    ]
    quick = batch_of(np.zeros((1, 4), np.float32))
    for runner in runners:
        runner.run(batch_of(np.zeros((1, 4), np.float32)))
    assert len({runner.device._stream.cuda_stream for runner in runners}) == 2
    done = threading.Event()

    def run_slowly():
        runners[0].run(batch_of(np.ones((1, 4), np.float32)))
        done.set()

    thread = threading.Thread(target=run_slowly)
    thread.start()
    while not runners[0].device._has_queued:
        assert thread.is_alive()
    runners[1].run(quick)
    assert not done.is_set(), "the quick batch was answered while the slow one ran"
    thread.join()
    assert torch.cuda.current_stream() == torch.cuda.default_stream(), (
        "this thread has a separate stream"
    )


def test_a_model_that_waits_within_itself_runs_without_graphs(runner_of, batch_of, caplog):
    net = NET.replace("return x", "x = x + (x.sum().item() > 1e9); return x")
    with caplog.at_level(logging.WARNING, "ksrv.handlers"):
        runner = runner_of(HANDLER, "class: net.py:Net\ncuda_graphs: true", files={"net.py": net})
        for value in (1, 2, 3):
            answer = runner.run(batch_of(np.full((2, 2), value, np.float32))).tensors[0].data
            assert answer.tolist() == [[2.0 * value] * 2] * 2
    assert "runs without graphs" in caplog.text
    assert runner.handler.model.graphs == 0


def test_a_full_gpu_refuses_the_batch_and_serves_the_next(runner_of, batch_of):
    net = NET.replace(
        "return x", "torch.empty(int(x[0, 0].item()) << 40, device=x.device); return x"
    )
    runner = runner_of(HANDLER, "class: net.py:Net", files={"net.py": net})
    with pytest.raises(Overloaded, match="cuda:0 has too little memory for this batch"):
        runner.run(batch_of(np.full((2, 2), 4, np.float32)))
    assert (
        runner.run(batch_of(np.zeros((2, 2), np.float32))).tensors[0].data.tolist() == [[0, 0]] * 2
    )
    free, total = CudaDevice("cuda:0").free_memory()
    assert 0 < free < total


def test_hundred_shapes_and_instances_leak_no_memory(runner_of, batch_of):
    runner = runner_of(HANDLER, "class: net.py:Net\ncuda_graphs: true", files={"net.py": LAYERS})
    for rows in range(1, 101):
        runner.run(batch_of(np.ones((rows, 512), np.float32)))
    assert runner.handler.model.graphs == 64
    held = torch.cuda.memory_allocated(), buffer_pool.statistics()["pinned_bytes"]
    for rows in [*range(1, 101)] * 3:
        runner.run(batch_of(np.ones((rows, 512), np.float32)))
    assert (torch.cuda.memory_allocated(), buffer_pool.statistics()["pinned_bytes"]) == held


def test_bfloat16_and_views_come_back_whole(runner_of, batch_of):
    source = """
    import torch
    from ksrv import BaseHandler
    class Forms(BaseHandler):
        def inference(self, x):
            return {"a": x.to(torch.bfloat16), "b": x.t().contiguous().t(), "c": x[:, :0],
                    "d": x.sum(1).expand(3, -1).t(), "e": (x > 1)}
    """
    runner = runner_of(source, "class: net.py:Net", files={"net.py": NET})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    a, b, c, d, e = runner.run(batch_of(x)).tensors
    assert (a.datatype, a.data[0].tolist()) == ("BF16", [0, 0x3F80, 0x4000])
    np.testing.assert_array_equal(b.data, x)
    assert c.shape == (2, 0)
    assert d.data.tolist() == [[3.0] * 3, [12.0] * 3]
    assert (e.datatype, e.data.tolist()) == ("BOOL", (x > 1).tolist())
