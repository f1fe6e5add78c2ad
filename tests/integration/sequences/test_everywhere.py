"""Sequences in streams, coroutines, composition, tests and examples, and with several workers."""

import concurrent.futures

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from ksrv import BaseHandler
from ksrv.client import Client
from ksrv.dialects.registry import formats
from ksrv.errors import KsrvError
from ksrv.model.fault import ConfigError
from ksrv.repository.model_yaml import load_model_config
from ksrv.testing import Server, load
from tests.support.models import write_model
from tests.support.paths import ROOT
from tests.support.sequences import SHAPES, SUMS, Refused, over_grpc, over_rest, post
from tests.support.streams import TEXT, StreamedResponse

TALKS = """
from ksrv import BaseHandler


class Talks(BaseHandler):
    def inference(self, text, sequences):
        return [self.words(bytes(one), mine) for one, mine in zip(text, sequences)]

    def words(self, text, sequence):
        sequence.state.setdefault("heard", []).append(text)
        for one in sequence.state["heard"]:
            yield one.decode() + " "
"""

LATER = """
import asyncio

from ksrv import BaseHandler


class Later(BaseHandler):
    running = most = 0

    async def inference(self, x, sequences):
        self.running += 1
        self.most = max(self.most, self.running)
        y = x.copy()
        for row, sequence in enumerate(sequences):
            before = sequence.state.get("sum", 0)
            await asyncio.sleep(0.01)
            sequence.state["sum"] = y[row, 0] = before + x[row, 0]
        y[:, 1] = self.most
        self.running -= 1
        return {"y": y}
"""

CALLER = """
from ksrv import BaseHandler


class Caller(BaseHandler):
    def inference(self, x):
        given = self.context.batch.requests[0].parameters
        parameters = {name[3:]: value for name, value in given.items()}
        return self.context.models["sums"].infer({"x": x}, parameters=parameters)
"""


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    own = f"executor: {request.param}\nwarmup: false\n"
    write_model(root, "sums", SUMS, f"{SHAPES}{own}sequences: {{}}\n")
    write_model(root, "talks", TALKS, f"{TEXT}executor: {request.param}\nsequences: {{}}\n")
    write_model(root, "later", LATER, f"{SHAPES}{own}sequences: {{}}\n")
    write_model(root, "caller", CALLER, f"{SHAPES}{own}")
    with Server(root) as made:
        made.executor = request.param
        yield made


def test_streams_over_http_and_grpc(server):
    def said(answers):
        return "".join(one["text_output"] for one in answers)

    path = "/v2/models/talks/generate_stream"
    for word, flags, heard in (
        ("one", {"sequence_start": True}, "one "),
        ("two", {}, "one two "),
        ("three", {"sequence_end": True}, "one two three "),
    ):
        asked = {"text_input": word, "parameters": {"sequence_id": "talk", **flags}}
        with StreamedResponse(server, path, asked) as found:
            assert said(document for _, document in found.events()) == heard
    answers = []
    done = concurrent.futures.Future()

    def note(result, error):
        answers.append(error or result.get_response())
        if error is not None or answers[-1].parameters["triton_final_response"].bool_param:
            finals.append(answers[-1].id if error is None else error)
        if len(finals) == 3:
            done.set_result(None)

    finals = []
    tensor = triton_grpc.InferInput("text", [1], "BYTES")
    with triton_grpc.InferenceServerClient(str(server.grpc)) as client:
        client.start_stream(note)
        for number, word in enumerate((b"a", b"b", b"c")):  # all at once: they run in order
            tensor.set_data_from_numpy(np.array([word], object))
            client.async_stream_infer(
                "talks",
                [tensor],
                request_id=str(number),
                sequence_id=77,
                sequence_start=number == 0,
                sequence_end=number == 2,
                enable_empty_final_response=True,
            )
        done.result(60)
        client.stop_stream()
    heard = {}
    for one in answers:
        for content in one.raw_output_contents:
            heard[one.id] = heard.get(one.id, b"") + content[4:]
    assert heard == {"0": b"a ", "1": b"a b ", "2": b"a b c "}
    assert finals == ["0", "1", "2"]


def test_coroutines_run_in_parallel_unless_of_one_sequence(server):
    for name in range(1, 4):
        over_rest(server, "later", 0, sequence_id=name, sequence_start=True)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [
            (name, pool.submit(over_rest, server, "later", 1, sequence_id=name))
            for _ in range(8)
            for name in range(1, 4)
        ]
    for name in range(1, 4):
        assert sorted(one.result()[0] for at, one in asked if at == name) == list(range(1, 9))
    [most] = {over_rest(server, "later", 0, sequence_id=1, sequence_end=True)[1]}
    assert most <= 3


def test_handlers_call_models_that_serve_sequences(server):
    flags = {"my_sequence_id": "called", "my_sequence_start": True}
    assert over_rest(server, "caller", 2, **flags)[0] == 2
    assert over_grpc_with(server, "caller", 3, my_sequence_id="called")[0] == 5
    with pytest.raises(Refused, match="no open sequence 'unknown'") as caught:
        over_rest(server, "caller", 1, my_sequence_id="unknown")
    assert caught.value.status == 400
    with pytest.raises(Refused, match="needs the parameter 'sequence_id'"):
        over_rest(server, "caller", 1)
    with pytest.raises(Refused, match="'sequence_id' must be a number from 1") as caught:
        over_rest(server, "caller", 1, my_sequence_id=-1)
    assert caught.value.status == 400


def over_grpc_with(server, model, value, **parameters):
    return over_grpc(server, model, value, parameters=parameters)


def test_a_reload_ends_the_sequences_and_says_so(server):
    over_rest(server, "sums", 1, sequence_id="reloaded", sequence_start=True)
    post(server, "/v2/repository/models/sums/load", {})
    with pytest.raises(Refused, match="the model was loaded anew") as caught:
        over_rest(server, "sums", 1, sequence_id="reloaded")
    assert caught.value.status == 409
    with pytest.raises(Refused, match="the model was loaded anew") as caught:
        over_grpc(server, "sums", 1, sequence_id="reloaded")
    assert caught.value.status == "ABORTED"
    flags = {"sequence_id": "reloaded", "sequence_start": True, "sequence_end": True}
    assert over_rest(server, "sums", 4, **flags)[0] == 4


def test_several_workers_are_refused(tmp_path):
    write_model(tmp_path, "sums", SUMS, f"{SHAPES}sequences: {{}}\n")
    write_model(tmp_path, "plain", LATER.replace("sequences", "batch"), f"{SHAPES}warmup: false\n")
    with Server(tmp_path, workers=2, ready_when="any") as server:
        with pytest.raises(Refused) as caught:
            over_rest(server, "sums", 1, sequence_id=1, sequence_start=True)
        assert caught.value.status == 503
        assert "set 'workers' to 1" in caught.value.message


# ---- in this process ------------------------------------------------------------------------


class Sums(BaseHandler):
    def postprocess(self, outputs, sequences):
        found = outputs.copy()
        for row, sequence in enumerate(sequences):
            found[row] += sequence.state.get("sum", 0)
            sequence.state["sum"] = found[row]
        return found

    def inference(self, x):
        return x


SETTINGS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    "sequences": {"max": 3},
}


def test_in_a_test_without_a_server():
    with load(Sums, **SETTINGS, batching={"max_batch_size": 8}) as model:
        asked = lambda name, **flags: {"sequence_id": name, **flags}  # noqa: E731
        assert model.infer({"x": [1.0]}, parameters=asked(1, sequence_start=True))["y"] == [1]
        assert model.infer({"x": [2.0]}, parameters=asked(1))["y"] == [3]
        answers = model.infer_many([{"x": [1.0]}, {"x": [1.0]}], parameters=asked(1))
        assert [one["y"].tolist() for one in answers] == [[4], [5]]
        [error] = model.infer_many([{"x": [1.0]}], parameters=asked(2))
        assert error.http_status == 400
        with pytest.raises(KsrvError, match="no open sequence 2"):
            model.infer({"x": [1.0]}, parameters=asked(2))


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("sequences: {max: 0}", "max"),
        ("sequences: {max: many}", "max"),
        ("sequences: {idle_timeout_ms: -1}", "idle_timeout_ms"),
        ("sequences: {idle: 1}", "idle"),
        ("sequences: 5", "sequences"),
        ("sequences: {}\nbatching: {max_batch_size: 4, split: true}", "not split"),
    ],
)
def test_sections_that_are_wrong(tmp_path, section, text):
    folder = write_model(tmp_path, "m", SUMS, f"{SHAPES}{section}\n")
    with pytest.raises(ConfigError, match=text):
        load_model_config(folder)


def test_torchserve_handlers_serve_no_sequences(tmp_path):
    handler = (
        "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler):\n    pass\n"
    )
    folder = write_model(tmp_path, "m", handler, "sequences: {}\n")
    with pytest.raises(ConfigError, match="TorchServe serves no sequences"):
        load_model_config(folder, formats=formats())


def test_the_example_smooths_signals_everywhere_alike():
    folder = ROOT / "examples" / "sequences"
    signals = {"hall": [20.0, 22.0, 21.0], "cellar": [8.0, 8.0, 12.0]}
    expected = {"hall": [20.0, 21.0, 21.0], "cellar": [8.0, 8.0, 10.0]}

    def sent(ask):
        found = {name: [] for name in signals}
        for step in range(3):
            for name, values in signals.items():
                flags = {"sequence_start": step == 0, "sequence_end": step == 2}
                found[name].append(ask(values[step], {"sequence_id": name, **flags}))
        return found

    def over(client):
        return lambda value, given: client.infer(
            "smoother", {"value": [[value]]}, parameters=given
        )["smoothed"][0, 0]

    with (
        Server(folder) as server,
        Client(server.url) as rest,
        Client(f"grpc://{server.grpc}") as grpc,
    ):
        assert sent(over(rest)) == expected
        assert sent(over(grpc)) == expected
    with load(folder) as model:
        assert (
            sent(lambda value, given: model.infer([value], parameters=given)["smoothed"][0, 0])
            == expected
        )
