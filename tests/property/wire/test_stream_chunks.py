"""Chunks that are written natively are, byte for byte, what the general renderers write."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv._native.queue.request_queue import Queue
from ksrv._native.server.response_stream import ChunkForm, ChunkWriter, ResponseStream
from ksrv.dialects.triton.extensions.generate.bodies import AnswerForm, render_generate
from ksrv.dialects.triton.extensions.streams import INFER_RESPONSE, MORE_FOLLOW
from ksrv.engine.batches.streaming import ChunkSender
from ksrv.engine.requests.handle import QueuedRequest
from ksrv.handlers.base_runner import BaseRunner
from ksrv.handlers.outputs import OutputConverter
from ksrv.handlers.streaming.chunk_forms import ENDED
from ksrv.handlers.streaming.streams import ChunkStream
from ksrv.model.config import ModelSource
from ksrv.model.datatypes import DTYPES
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.protocol import grpc, rest
from ksrv.protocol.protobuf import length_prefix
from ksrv.request import ExecutorInputs, InferRequest, InferResponse, RequestPart
from ksrv.server.rest.streams import EVENT_STREAM, JSON_LINES, StreamForm

TEXTS = ModelSpec("m", "2", outputs=(TensorSpec("y", "BYTES", (-1,)),))


class GrpcForm:
    """How ModelStreamInfer writes answers, from public parts of the protocol."""

    def __init__(self, request):
        self._request = request

    def written(self, response):
        parts = grpc.render_infer(response, self._request, parameters=MORE_FOLLOW)
        message = b"".join([length_prefix(INFER_RESPONSE, sum(map(len, parts))), *parts])
        return struct.pack(">BI", 0, len(message)) + message

    def chunk_form(self, response):
        parts = grpc.render_infer(response, self._request, parameters=MORE_FOLLOW)
        return ChunkForm(response.outputs[0], "grpc_message", [bytes(parts[0])])


def rest_form(request, kind):
    form = StreamForm(kind, has_arrays=True)
    form.render = lambda one: bytes(rest.render_infer(one, request).parts[0])
    return form


def generate_form(spec, **how):
    form = StreamForm(EVENT_STREAM)
    form.render = partial(render_generate, spec=spec, form=AnswerForm(**how))
    return form


FORMS = {
    "events": lambda spec, request: rest_form(request, EVENT_STREAM),
    "lines": lambda spec, request: rest_form(request, JSON_LINES),
    "generate": lambda spec, request: generate_form(spec, as_text=True, own_names=False),
    "both names": lambda spec, request: generate_form(spec, as_text=True),
    "rows": lambda spec, request: generate_form(spec, has_rows=True),
    "records": lambda spec, request: generate_form(spec, records=True),
    "base64": lambda spec, request: generate_form(spec, as_base64=True),
    "gRPC": lambda spec, request: GrpcForm(request),
}


class Streams:
    """The streams of a batch of requests with one row each, and what their clients get.

    Args:
        native: Whether chunks may be written natively.
    """

    def __init__(self, spec, form, requests=1, native=True):
        asked = [InferRequest("m", "2", f'"{number}\n') for number in range(requests)]
        self.forms = [FORMS[form](spec, request) for request in asked]
        for request, its_form in zip(asked, self.forms, strict=True):
            request.stream = ResponseStream()
            if native:
                request.stream.form_of = its_form.chunk_form
        self.handles = [QueuedRequest(request, 1, 0) for request in asked]
        self.sender = ChunkSender(spec, self.handles)
        parts = [RequestPart(slice(row, row + 1)) for row in range(requests)]
        inputs = ExecutorInputs({}, requests, parts, emit=self.sender)
        runner = BaseRunner(ModelSource(name="m", version="", folder=Path(), root=Path()))
        runner.outputs = OutputConverter(spec)
        self.failures = {}
        self.chunks = ChunkStream(
            inputs, spec.outputs, runner.read_chunk, lambda: None, self.failures.setdefault
        )
        self.received = [b""] * requests
        self.general = 0

    def send(self, chunk):
        """Send a chunk as a handler yields it, and let the clients read."""
        assert self.chunks.take(chunk)
        for index, handle in enumerate(self.handles):
            for item in handle.request.stream.take_all(0):
                self.general += isinstance(item, InferResponse)
                written = item if isinstance(item, bytes) else self.forms[index].written(item)
                self.received[index] += written


def compare(spec, form, chunks, requests=1):
    """Send chunks both ways, and return how many answers were not written natively."""
    native, general = (Streams(spec, form, requests, native) for native in (True, False))
    for streams in (native, general):
        for chunk in chunks:
            streams.send(chunk)
    assert native.received == general.received
    assert general.general >= native.general
    return native.general


CHARACTERS = st.characters(codec=None)
ANY_TEXT = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.text(st.sampled_from('"\\/\0\b\t\n\f\r\x1f\x7f\x80\u2028\ud800\ud83d\ude00'), max_size=20),
    st.binary(max_size=40),
    st.binary(max_size=8).map(bytearray),
    st.sampled_from(["", b"", "x" * 70_000, b"\xff" * 70_000, b"\xed\xa0\x80", b"\xc0\x80"]),
)
LONE = st.one_of(
    ANY_TEXT,
    ANY_TEXT.map(lambda text: [text]),
    ANY_TEXT.map(lambda text: {"y": text}),
    ANY_TEXT.map(lambda text: {"y": [text]}),
    st.just({"y": [None]}),
    st.just({"z": "other JSON"}),
    st.just([1]),
)


@pytest.mark.parametrize("form", FORMS)
@given(chunks=st.lists(LONE, min_size=1, max_size=8))
@example(chunks=["a", 'q"\\', "\x00\x1f\n", b"\xff", "", b"", "x" * 70_000, "last"])
def test_texts_of_a_lone_request_equal_the_general_way(form, chunks):
    compare(TEXTS, form, chunks)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "base64"])
def test_only_the_first_chunk_takes_the_general_way(form):
    texts = ["first", "second", b"third", ["fourth"], {"y": "fifth"}, "", 'a"\n\\']
    assert compare(TEXTS, form, texts) == 1


ROW = st.one_of(st.none(), st.just(ENDED), ANY_TEXT)


@pytest.mark.parametrize("form", ["events", "gRPC"])
@given(chunks=st.lists(st.tuples(ROW, ROW, ROW).map(list), min_size=1, max_size=8))
@example(chunks=[["a", None, "b"], ["c", "d", None], [None, "e", ENDED], [None, None, None]])
def test_texts_of_several_requests_equal_the_general_way(form, chunks):
    compare(TEXTS, form, chunks, requests=3)


@st.composite
def numbers(draw):
    datatype = draw(st.sampled_from([one for one in DTYPES if one not in ("BYTES", "BF16")]))
    width = draw(st.integers(1, 3))
    dtype = np.dtype(DTYPES[datatype])
    sizes = {"min_size": 2 * width * dtype.itemsize, "max_size": 2 * width * dtype.itemsize}
    rows = []
    for data in draw(st.lists(st.binary(**sizes), min_size=1, max_size=5)):
        array = np.frombuffer(data, dtype).reshape(2, width)
        rows.append(array.view(np.uint8) % 2 == 1 if datatype == "BOOL" else array)
    return datatype, width, rows


@pytest.mark.parametrize("form", ["events", "generate", "gRPC"])
@given(given_numbers=numbers())
@example(given_numbers=("FP32", 1, [np.array([[np.nan], [np.inf]], np.float32)] * 2))
def test_numbers_equal_the_general_way(form, given_numbers):
    datatype, width, chunks = given_numbers
    if datatype == "FP16" and form != "gRPC":
        return  # JSON does not carry it
    spec = ModelSpec("m", "2", outputs=(TensorSpec("y", datatype, (-1, width)),))
    compare(spec, form, chunks, requests=2)
    compare(spec, form, [chunk[:1] for chunk in chunks])


def test_numbers_after_the_first_chunk_are_written_natively():
    spec = ModelSpec("m", "2", outputs=(TensorSpec("y", "FP32", (-1, 2)),))
    chunks = [np.full((2, 2), value, np.float32) for value in (1, 2, 3)]
    assert compare(spec, "events", chunks, requests=2) == 2
    scalars = ModelSpec("m", "2", outputs=(TensorSpec("y", "FP32", (-1,)),))
    assert compare(scalars, "generate", [1.5, 2.5, np.float32(3)]) == 1


def test_a_chunk_that_a_stream_has_no_room_for_is_written_generally():
    streams = Streams(TEXTS, "events")
    streams.send("first")
    while streams.sender.writer.write("x") == 1:
        pass
    assert streams.sender.without_room() == [0]
    assert streams.sender.writer.write("x") == -1
    streams.handles[0].request.stream.take_all(0)
    assert streams.sender.writer.write("x") == 1


def test_requests_that_ended_are_skipped():
    streams = Streams(TEXTS, "events", requests=2)
    queue = Queue(2, "m")
    for handle in streams.handles:
        queue.push(handle)
    streams.send(["a", "b"])
    assert streams.handles[0].cancel()
    streams.send(["c", "d"])
    assert streams.received[1].count(b"data:") == 2
    assert streams.sender.listening() == {1}
    assert len(queue.take_all()) == 1


def test_bytes_of_a_writer_that_holds_no_streams_are_refused():
    with pytest.raises(TypeError):
        ChunkWriter([None], [ResponseStream()], ENDED, "y", 1, True)
    with pytest.raises(ValueError, match="0 requests have 1 streams"):
        ChunkWriter([], [ResponseStream()], ENDED, "y", 1, True)
