"""Images over gRPC without Python: the answers of the way through Python, for raw and for typed contents.

Every request is sent to two servers over one engine; only one of them knows the models' endpoints.
"""

import grpc
import numpy as np
import pytest

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.images import jpeg
from ksrv.protocol.protobuf import message_class
from ksrv.repository.layout import Repository
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from tests.support.images import files
from tests.support.models import write_model
from tests.support.native.fast_path import set_grpc_routes
from tests.support.wire.grpc_calls import UNLIMITED, ServerWithThreads

pytestmark = pytest.mark.skipif(
    jpeg.decoder() != "libjpeg-turbo", reason="without libjpeg-turbo images go through Python"
)

ECHO = 'def inference(image): return {"image-out": image}\n'
PAIR = 'def inference(image, other): return {"image-out": image, "other-out": other}\n'


def settings(*names, more=""):
    inputs = ", ".join(
        f"{{name: {name}, datatype: UINT8, shape: [-1, 8, 9, 3], image: {{exif: apply}}}}"
        for name in names
    )
    return f"inputs: [{inputs}]\n{more}"


BATCHING = "batching: {max_batch_size: 8, max_delay_ms: 0}\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "alone", ECHO, settings("image"))
    write_model(root, "joined", ECHO, settings("image", more=BATCHING))
    write_model(root, "separate", ECHO, settings("image", more=BATCHING + "executor: process\n"))
    write_model(root, "pair", PAIR, settings("image", "other"))
    numbers = "inputs: [{name: image, datatype: UINT8, shape: [-1, 3]}]\n"
    write_model(root, "numbers", ECHO, numbers)
    made = Engine(Repository([root]), EngineSettings())
    made.start()
    assert all(state.state == "READY" for state in made.index()), made.index()
    yield made
    made.close(5)


class Served:
    """A native gRPC server and a channel to it."""

    def __init__(self, engine, *, fast):
        self.server = ServerWithThreads(server_parts(engine, ServerSettings()))
        port = self.server.start("127.0.0.1:0")
        if fast:
            set_grpc_routes(self.server, engine)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED)

    def fast_calls(self):
        return self.server._core.counters()["fast_path"]

    def infer(self, request):
        """Return the outputs by name, or the error."""
        answer = message_class("inference.ModelInferResponse")
        call = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=None,
            response_deserializer=answer.FromString,
        )
        try:
            found = call(request, timeout=60)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        raw = zip(found.outputs, found.raw_output_contents, strict=True)
        return {output.name: (list(output.shape), bytes(data)) for output, data in raw}

    def stop(self):
        self.channel.close()
        self.server.stop(5)


@pytest.fixture(scope="module")
def ways(engine):
    fast, general = Served(engine, fast=True), Served(engine, fast=False)
    yield fast, general
    fast.stop()
    general.stop()


def request(model, images, *, shape=None, name="image"):
    made = message_class("inference.ModelInferRequest")(model_name=model)
    entry = made.inputs.add(name=name, datatype="BYTES")
    entry.shape.extend([len(images)] if shape is None else shape)
    entry.contents.bytes_contents.extend(images)
    return made


def infer_both(ways, made):
    """Return the answer of both ways, and whether Python was needed."""
    fast, general = ways
    data = made if isinstance(made, bytes) else made.SerializeToString()
    before = fast.fast_calls()
    got = fast.infer(data)
    assert got == general.infer(data)
    assert general.fast_calls() == 0
    return got, fast.fast_calls() == before


@pytest.mark.parametrize("model", ["alone", "joined", "separate"])
@pytest.mark.parametrize("shape", [None, [3, 1]])
def test_typed_images_equal_raw_images_without_python(ways, model, shape):
    sent = [files.jpeg(40, 31, seed=1), files.oriented(50, 20, 6), files.jpeg(8, 9)]
    typed = request(model, sent, shape=shape)
    raw = message_class("inference.ModelInferRequest")()
    raw.CopyFrom(typed)
    raw.inputs[0].ClearField("contents")
    raw.raw_input_contents.append(b"".join(len(one).to_bytes(4, "little") + one for one in sent))
    got, through_python = infer_both(ways, typed)
    assert not through_python
    assert infer_both(ways, raw) == (got, False)
    shown, data = got["image-out"]
    assert (shown, len(data)) == ([3, 8, 9, 3], 3 * 8 * 9 * 3)
    assert np.frombuffer(data, np.uint8).any()


def test_several_inputs_are_typed_together(ways):
    made = request("pair", [files.jpeg(20, 30, seed=1)])
    made.inputs.append(request("pair", [files.jpeg(30, 20, seed=2)], name="other").inputs[0])
    got, through_python = infer_both(ways, made)
    assert not through_python
    assert got["image-out"] != got["other-out"]


GOOD = files.jpeg(20, 30)


def with_raw(made):
    made.raw_input_contents.append(GOOD)
    return made


def with_numbers(made):
    made.inputs[0].contents.int_contents.append(7)
    return made


def without_contents(made):
    made.inputs[0].ClearField("contents")
    return made


@pytest.mark.parametrize(
    ("made", "answered"),
    [
        pytest.param(request("alone", [GOOD], shape=[2]), False, id="fewer than the shape"),
        pytest.param(request("alone", [GOOD] * 2, shape=[1]), False, id="more than the shape"),
        pytest.param(request("alone", [], shape=[0]), False, id="none"),
        pytest.param(request("alone", [GOOD], shape=[-1]), False, id="a negative shape"),
        pytest.param(request("alone", [GOOD], shape=[1, 2]), False, id="two to a row"),
        pytest.param(request("alone", [GOOD], shape=[1, 1, 1]), False, id="three dimensions"),
        pytest.param(request("alone", [GOOD], shape=[2**40]), False, id="a huge shape"),
        pytest.param(with_raw(request("alone", [GOOD])), False, id="raw contents as well"),
        pytest.param(with_numbers(request("alone", [GOOD])), False, id="numbers as well"),
        pytest.param(without_contents(request("alone", [GOOD])), False, id="no contents"),
        pytest.param(request("alone", [b""]), False, id="an empty image"),
        pytest.param(request("alone", [GOOD, GOOD[:-300]]), False, id="a cut image"),
        pytest.param(request("alone", [GOOD, b"no image"]), False, id="no image"),
        pytest.param(
            request("alone", [GOOD, files.jpeg_claiming(60000, 60000)]), False, id="a bomb"
        ),
        pytest.param(request("numbers", [GOOD]), False, id="a model of numbers"),
        pytest.param(request("pair", [GOOD]), False, id="an input too few"),
        pytest.param(request("alone", [GOOD, files.png(9, 9)]), True, id="a PNG beside it"),
        pytest.param(request("alone", [GOOD] * 300), True, id="more than are noted"),
    ],
)
def test_unusual_requests_get_the_same_answer(ways, made, answered):
    got, _ = infer_both(ways, made)
    assert isinstance(got, dict) == answered, got
    assert infer_both(ways, request("alone", [GOOD]))[1] is False


def test_every_cut_of_a_message_has_the_same_answer(ways):
    data = request("alone", [GOOD, files.jpeg(9, 9)]).SerializeToString()
    for end in range(0, len(data), 37):
        infer_both(ways, data[:end])


def test_joined_requests_keep_their_own_images(ways):
    fast, _ = ways
    sent = [files.jpeg(16 + k, 30, seed=k) for k in range(12)]
    wanted = [infer_both(ways, request("alone", [one]))[0]["image-out"] for one in sent]
    assert len({data for _, data in wanted}) == 12
    stub = fast.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    before = fast.fast_calls()
    calls = [stub.future(request("joined", [one]).SerializeToString(), timeout=60) for one in sent]
    answer = message_class("inference.ModelInferResponse")
    for call, (_, data) in zip(calls, wanted, strict=True):
        assert answer.FromString(call.result()).raw_output_contents[0] == data
    assert fast.fast_calls() == before + 12
