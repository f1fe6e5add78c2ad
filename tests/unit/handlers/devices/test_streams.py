"""One copy from pinned memory, a stream for each instance, and a single wait, for the answer."""

import threading

import numpy as np
import pytest
import torch

from ksrv._native.memory import buffer_pool
from ksrv.errors import HandlerFailed
from ksrv.handlers.devices.device import Device
from tests.support.devices.fake_device import PINS, FakeDevice
from tests.support.devices.nets import DEFAULT, NET

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

IN_PLACE = """
from ksrv import BaseHandler
class InPlace(BaseHandler):
    def inference(self, x):
        return x.add_(1)
"""
FEW, MANY = 64, 70_000  # floats in a row


@pytest.fixture
def net_of(runner_of, fake_devices):
    """Make a runner of a network whose device is the fake one, which has forgotten the load."""

    def make(handler=DEFAULT, config="", **options):
        runner = runner_of(
            handler, f"class: net.py:Net\ndevice: cpu\n{config}", files={"net.py": NET}, **options
        )
        assert isinstance(runner.device, FakeDevice)
        runner.device.events.clear()
        return runner

    return make


def pinned_array(runner, shape):
    """An array as the engine assembles a batch: in a block that the instance leased."""
    nbytes = int(np.prod(shape)) * 4
    array = buffer_pool.array(runner.lease(nbytes), "<f4", shape)
    array[:] = np.arange(array.size, dtype=np.float32).reshape(shape)
    return array


@pytest.mark.parametrize("writeable", [True, False])
def test_other_memory_is_copied_by_the_driver_alone(net_of, batch_of, writeable):
    runner = net_of()
    batch = batch_of(np.random.default_rng(0).random((2, MANY), dtype=np.float32))
    array = batch.tensors["x"].data
    array.flags.writeable = writeable
    copied = buffer_pool.copied_bytes()
    answer = runner.run(batch).tensors[0].data
    assert runner.device.events[1:4] == [
        f"in {array.nbytes} pageable", f"out {array.nbytes} pinned", "synchronise"
    ]  # fmt: skip
    assert buffer_pool.copied_bytes() == copied
    np.testing.assert_array_equal(answer, array * 2)


def test_an_in_place_operator_writes_on_the_device_alone(net_of, batch_of):
    runner = net_of(IN_PLACE)
    batch = batch_of(np.ones((2, FEW), np.float32))
    batch.tensors["x"].data.flags.writeable = False
    assert runner.run(batch).tensors[0].data.max() == 2
    assert batch.tensors["x"].data.max() == 1


def test_channels_keep_their_order(fake_devices):
    device = FakeDevice("cpu")
    images = np.random.default_rng(0).integers(0, 255, (2, 200, 200, 3), dtype=np.uint8)
    with device.running():
        tensor = device.put(images.transpose(0, 3, 1, 2))
        assert tensor.shape == (2, 3, 200, 200)
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert device.events == ["enter", "in 240000 pageable", "synchronise", "leave"]
    assert torch.equal(
        tensor.as_subclass(torch.Tensor).permute(0, 2, 3, 1), torch.from_numpy(images)
    )


SEVERAL = """
from ksrv import BaseHandler
class Several(BaseHandler):
    def postprocess(self, y):
        return {"a": y, "b": y.sum(1), "c": y.to(__import__("torch").bfloat16), "d": y[:, ::2]}
"""


def test_all_outputs_are_waited_for_together(net_of, batch_of):
    runner = net_of(SEVERAL)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    a, b, c, d = runner.run(batch_of(x)).tensors
    assert runner.device.events[2:] == [
        "out 32 pinned", "out 8 pinned", "out 16 pinned", "out 16 pinned", "synchronise", "leave"
    ]  # fmt: skip
    np.testing.assert_array_equal(a.data, x * 2)
    np.testing.assert_array_equal(b.data, x.sum(1) * 2)
    assert (c.datatype, c.data.tolist()[0][1]) == ("BF16", 0x4000)
    np.testing.assert_array_equal(d.data, x[:, ::2] * 2)


ROWS = """
from ksrv import BaseHandler
class Rows(BaseHandler):
    def postprocess(self, y):
        return [{"box": row[:2], "best": row.max(), "name": "cat"} for row in y]
"""


def test_tensors_within_rows_are_waited_for_together(net_of, batch_of):
    runner = net_of(ROWS)
    [answer] = runner.run(batch_of(np.arange(6, dtype=np.float32).reshape(2, 3))).tensors
    assert runner.device.events.count("synchronise") == 1
    assert FakeDevice.waited_by_handlers == []
    assert list(answer.data)[1] == b'{"box":[6.0,8.0],"best":10.0,"name":"cat"}'


CONSTANT = """
import numpy as np
from ksrv import BaseHandler
class Constant(BaseHandler):
    def postprocess(self, y):
        return np.zeros((len(y), 1), np.float32)
"""


def test_an_answer_without_the_device_still_waits_for_the_copies(net_of, batch_of):
    runner = net_of(CONSTANT)
    runner.run(batch_of(np.ones((2, FEW), np.float32)))
    assert runner.device.events == ["enter", "in 512 pageable", "synchronise", "leave"]


def test_the_memory_of_a_copy_is_held_until_it_was_waited_for(fake_devices):
    device = FakeDevice("cpu")
    with device.running():
        block = buffer_pool.lease(1 << 20, pages=True)
        array = buffer_pool.array(block, "<f4", (1 << 18,))
        array[:] = 1
        device.put(array)
        del array, block
        other = memoryview(buffer_pool.lease(1 << 20, pages=True))
        other[:] = bytes(1 << 20)  # would be noticed if it were the same memory
    assert device.events[-2:] == ["synchronise", "leave"]


def test_instances_have_separate_streams(net_of, batch_of):
    first, second = net_of(), net_of(instance=1)
    assert first.device is not second.device and first.device.number != second.device.number
    for runner in (first, second):
        runner.run(batch_of(np.ones((1, 4), np.float32)))
        assert runner.device.events[0] == "enter" and runner.device.events[-1] == "leave"


THREADED = """
import threading
from ksrv import BaseHandler
class Threaded(BaseHandler):
    def preprocess(self, batch):
        found = []
        thread = threading.Thread(target=lambda: found.append(batch.tensor("x")))
        thread.start(); thread.join()
        return found[0]
"""


def test_a_thread_of_the_handlers_waits_for_its_copy(net_of, batch_of):
    runner = net_of(THREADED)
    answer = runner.run(batch_of(np.ones((1, 4), np.float32))).tensors[0].data
    assert runner.device.events == [
        "enter", "in 16 waiting", "out 16 pinned", "synchronise", "leave"
    ]  # fmt: skip
    assert answer.tolist() == [[2.0] * 4]


CHUNKS = """
from ksrv import BaseHandler
class Chunks(BaseHandler):
    def inference(self, x):
        for factor in range(3):
            yield self.model(x) * factor
"""


def test_each_streamed_chunk_waits_separately(net_of, batch_of, chunks):
    runner = net_of(CHUNKS)
    runner.run(batch_of(np.ones((1, 4), np.float32), emit=chunks))
    assert [chunk.tensors[0].data[0, 0] for chunk in chunks] == [0.0, 2.0, 4.0]
    assert runner.device.events.count("synchronise") == 3
    assert runner.device.events.count("enter") == 1


ASYNC = """
import asyncio
from ksrv import BaseHandler
class Later(BaseHandler):
    async def inference(self, x):
        await asyncio.sleep(0)
        return self.model(x)
"""


def test_coroutines_run_on_the_stream(net_of, batch_of):
    runner = net_of(ASYNC)
    answered = threading.Event()
    answers = []

    def done(answer):
        answers.append(answer)
        answered.set()

    runner.begin(batch_of(np.full((1, 4), 3, np.float32)), done)
    assert answered.wait(30)
    assert answers[0].tensors[0].data.tolist() == [[6.0] * 4]
    assert runner.device.events[:4] == [
        "enter", "in 16 pageable", "out 16 pinned", "synchronise"
    ]  # fmt: skip


def test_asynchronous_kernel_error_fails_the_batch(net_of, batch_of, monkeypatch):
    runner = net_of(CONSTANT)

    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(runner.device, "_synchronise", fail)
    with pytest.raises(
        HandlerFailed, match="stage outputs of the model m failed with RuntimeError"
    ):
        runner.run(batch_of(np.ones((1, 4), np.float32)))
    monkeypatch.undo()
    assert runner.run(batch_of(np.ones((1, 4), np.float32))).tensors[0].data.tolist() == [[0.0]]


def test_an_executors_memory_takes_the_answer(net_of, batch_of):
    runner = net_of()
    leased = []

    def lease(nbytes):
        leased.append(buffer_pool.lease(nbytes, memfd=True))
        return leased[-1]

    runner.device.lease_answer = lease
    answer = runner.run(batch_of(np.ones((1, 4), np.float32))).tensors[0].data
    [block] = leased
    assert block.pinned
    assert 0 <= answer.__array_interface__["data"][0] - block.address < block.capacity


def test_memory_is_pinned_once_whatever_it_serves(net_of, batch_of):
    runner = net_of()
    array = np.ones((2, MANY), np.float32)
    for _ in range(2):
        batch = batch_of(array)
        batch.tensors["x"].data = pinned_array(runner, array.shape)
        runner.run(batch)
    del batch
    before = dict(PINS.bytes)
    pinned = buffer_pool.statistics()["pinned_bytes"]
    assert pinned >= sum(before.values()) > 2 * array.nbytes - 1
    for _ in range(20):
        batch = batch_of(array)
        batch.tensors["x"].data = pinned_array(runner, array.shape)
        runner.run(batch)
        del batch
    assert before == PINS.bytes
    assert buffer_pool.statistics()["pinned_bytes"] == pinned


def test_close_releases_the_device(net_of):
    runner = net_of()
    device = runner.device
    runner.close()
    assert device.closed


def test_a_handler_without_torch_is_not_on_the_device(runner_of, fake_devices, batch_of):
    runner = runner_of("def inference(x): return x", "device: auto")
    if isinstance(runner.device, FakeDevice):  # torch is imported here, and says what is there
        runner.run(batch_of(np.ones((1, 4), np.float32)))
        assert [one for one in runner.device.events if one.startswith("in")] == []
    assert type(Device("cpu").lease(5)) is buffer_pool.Block
