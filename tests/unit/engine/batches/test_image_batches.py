"""Images in batches: each is decoded once into its row, and a bad image fails only its request."""

import threading
import time

import cv2
import numpy as np
import pytest

from ksrv._native.memory.memory_budget import PROCESS
from ksrv.engine.instances.decode_thread import DecodeThread
from ksrv.engine.requests import validation
from ksrv.errors import BodyTooLarge, InvalidRequest, Overloaded
from ksrv.images import opencv
from ksrv.model.spec import ImageSpec, TensorSpec
from ksrv.request import InferRequest, Tensor
from tests.support.engine.engine_models import source, tensor
from tests.support.images import files
from tests.support.wait_until import wait_until

SMALL = TensorSpec("x", "FP32", (-1, 4, 6, 3), ImageSpec())
SCALE = TensorSpec("scale", "FP32", (-1, 1))


def png(value, height=8, width=12):
    pixels = np.full((height, width, 3), value, np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def images(*files, **fields):
    return InferRequest(
        "m", inputs=[Tensor("x", "BYTES", (len(files),), list(files))], nbytes=100, **fields
    )


def means(batch):
    return tensor("y", batch.tensors["x"].data.mean(axis=(1, 2, 3))[:, None])


class Gate:
    """A handler that holds its batches back until its event is set."""

    def __init__(self, result=lambda batch: means(batch).data, *, opened=False):
        self.event = threading.Event()
        if opened:
            self.event.set()
        self.batches = []
        self.result = result

    def __call__(self, batch):
        self.batches.append(batch)
        self.event.wait(30)
        return self.result(batch)


@pytest.fixture
def serve(engine):
    """Make an engine that runs a function on batches of images."""

    def make(run, *inputs, cores=0, **settings):
        outputs = (TensorSpec("y", "FP32", (-1, 1)),)
        made = source(inputs=inputs or (SMALL,), outputs=outputs, **settings)
        return engine(made, run=run, cores=cores)

    return make


def answer(served, *sent):
    """Return the numbers of the answer to images."""
    return served.submit(images(*sent), caller_blocks=True).wait().outputs[0].data.tolist()


def test_failed_image_drops_its_rows_of_other_inputs(serve):
    gate = Gate(lambda batch: means(batch).data * batch.tensors["scale"].data)
    served = serve(gate, SMALL, SCALE, batch=8)

    def scaled(scale, *files):
        request = images(*files)
        request.inputs.append(tensor("scale", np.full((len(files), 1), scale)))
        return served.submit(request)

    first = scaled(1.0, png(1))
    wait_until(lambda: gate.batches)
    handles = [
        scaled(2.0, png(10)),
        scaled(3.0, files.damaged_png(8, 12)),
        scaled(4.0, png(20), png(30)),
    ]
    gate.event.set()
    first.wait()
    assert handles[0].wait().outputs[0].data.tolist() == [[20.0]]
    with pytest.raises(InvalidRequest):
        handles[1].wait()
    assert handles[2].wait().outputs[0].data.tolist() == [[80.0], [120.0]]


class Decoder:
    """A decoder before cv2 that holds the pictures of one value back until `release`."""

    def __init__(self, monkeypatch, held):
        self.held = held
        self.go = threading.Event()
        self.decoded = []
        self._decode = opencv.decode
        monkeypatch.setattr(opencv, "decode", self)

    def __call__(self, element, flags):
        pixels = self._decode(element, flags)
        value = 0 if pixels is None else int(pixels[0, 0, 0])
        self.decoded.append(value)
        if value == self.held:
            assert self.go.wait(60)
        return pixels


@pytest.mark.parametrize("ended", ["cancelled", "expired"])
def test_decoding_stops_once_the_request_has_ended(serve, monkeypatch, ended):
    decoder = Decoder(monkeypatch, held=7)
    gate = Gate(opened=True)
    served = serve(gate, batch=200, cores=1)
    deadline = time.monotonic_ns() + 50_000_000 if ended == "expired" else None
    request = images(*[png(7)], *[png(8)] * 99, deadline_ns=deadline)
    handle = served.submit(request)
    wait_until(lambda: decoder.decoded or handle.done())
    if ended == "cancelled":
        handle.cancel()
    wait_until(handle.done)
    decoder.go.set()
    assert answer(served, png(3)) == [[3.0]]
    assert decoder.decoded.count(8) <= 4  # other threads had begun these
    assert handle.state == ended
    assert [batch.rows for batch in gate.batches] == [1]
    assert served.statistics()[0].failed == 0


def test_ended_request_does_not_affect_its_batch(serve, monkeypatch):
    decoder = Decoder(monkeypatch, held=7)
    gate = Gate()
    served = serve(gate, batch=8)
    served._table.find("m").queue.may_prefetch = False
    first = served.submit(images(png(1)))
    wait_until(lambda: gate.batches)
    given_up = served.submit(images(png(7), *[png(8)] * 3))
    kept = served.submit(images(png(20)))
    gate.event.set()
    wait_until(lambda: 7 in decoder.decoded)
    given_up.cancel()
    decoder.go.set()
    assert first.wait().outputs[0].data.tolist() == [[1.0]]
    assert kept.wait().outputs[0].data.tolist() == [[20.0]]
    assert gate.batches[-1].rows == 1


def test_image_without_memory_fails_only_its_request(serve, monkeypatch):
    gate = Gate(opened=True)
    served = serve(gate, batch=8)
    bound, others = PROCESS.bound, 0
    try:
        PROCESS.bound = 10_000
        assert answer(served, png(5)) == [[5.0]]
        with pytest.raises(BodyTooLarge, match="image 1 of the input 'x' needs 144000 bytes"):
            served.submit(images(png(5), png(6, 80, 120)), caller_blocks=True).wait()
        others = 9_000
        assert PROCESS.reserve(others, small=True)
        with pytest.raises(Overloaded, match="image 0 of the input 'x' needs"):
            served.submit(images(png(5)), caller_blocks=True).wait()
    finally:
        PROCESS.give_back(others)
        PROCESS.bound = bound
    assert answer(served, png(6)) == [[6.0]]


def test_server_error_for_an_image_fails_only_its_request(serve, monkeypatch):
    decode = opencv.decode

    def fail(element, flags):
        if len(element) > 4000:
            raise MemoryError
        return decode(element, flags)

    monkeypatch.setattr(opencv, "decode", fail)
    gate = Gate()
    served = serve(gate, batch=8)
    first = served.submit(images(png(1)))
    wait_until(lambda: gate.batches)
    raw = InferRequest("m", inputs=[tensor("x", np.full((1, 4, 6, 3), 50.0))])
    handles = [served.submit(one) for one in (raw, images(files.png(80, 120)), images(png(40)))]
    gate.event.set()
    assert first.wait().outputs[0].data.tolist() == [[1.0]]
    assert handles[0].wait().outputs[0].data.tolist() == [[50.0]]
    with pytest.raises(Overloaded, match="image 0 of the input 'x' cannot be decoded because the"):
        handles[1].wait()
    assert handles[2].wait().outputs[0].data.tolist() == [[40.0]]


@pytest.fixture
def heavy(monkeypatch):
    """A picture that counts as slow, and a decoder that holds it back."""
    monkeypatch.setattr(validation, "SLOW_DECODE_NS", 1_000_000)  # about 250,000 pixels
    return Decoder(monkeypatch, held=7), png(7, 600, 600)


def decoding(decoder, handle):
    wait_until(lambda: decoder.decoded.count(7) or handle.done())
    assert not handle.done()


def test_slow_images_do_not_delay_other_clients(serve, heavy):
    decoder, picture = heavy
    gate = Gate(opened=True)
    served = serve(gate, batch=8)
    long = [served.submit(images(picture)) for _ in range(3)]
    decoding(decoder, long[0])
    for value in range(10, 20):
        assert answer(served, png(value)) == [[value]]
    assert decoder.decoded.count(7) <= 2  # one in the slow thread, and one ahead
    assert not any(one.done() for one in long)
    decoder.go.set()
    assert [one.wait().outputs[0].data.tolist() for one in long] == [[[7.0]]] * 3
    assert max(batch.rows for batch in gate.batches) == 1


def test_slow_images_are_answered_before_a_model_closes(serve, heavy):
    decoder, picture = heavy
    gate = Gate(opened=True)
    served = serve(gate, batch=8, instances=2)
    long = [served.submit(images(picture)) for _ in range(4)]
    decoding(decoder, long[0])
    queue = served._table.find("m").queue
    ending = threading.Thread(target=served.close)
    ending.start()
    wait_until(lambda: queue.closed)
    decoder.go.set()
    ending.join(60)
    assert not ending.is_alive()
    assert [one.wait().outputs[0].data.tolist() for one in long] == [[[7.0]]] * 4


def test_image_decoded_while_an_instance_ends_is_answered(serve, heavy, monkeypatch):
    decoder, picture = heavy
    gate = Gate(opened=True)
    ask = DecodeThread.wait

    def wait(self):
        decoder.go.set()
        wait_until(lambda: not self._works)  # the batch is ready before the instance asks
        return ask(self)

    monkeypatch.setattr(DecodeThread, "wait", wait)
    served = serve(gate, batch=8)
    long = served.submit(images(picture))
    decoding(decoder, long)
    ending = threading.Thread(target=served.close, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    assert long.wait().outputs[0].data.tolist() == [[7.0]]
