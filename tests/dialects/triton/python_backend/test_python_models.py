"""Models written for Triton's Python backend, over REST and gRPC with Triton's own clients."""

import json
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

HEAD = """
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils
"""

JOINED = """
class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.calls = 0

    def execute(self, requests):
        self.calls += 1
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.flat[0] < 0:
                error = pb_utils.TritonError("x is negative", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            longer = np.repeat(x, int(x.flat[0]), axis=1)
            y = pb_utils.Tensor("y", longer)
            count = pb_utils.Tensor("requests", np.full((len(x), 1), len(requests), np.int32))
            responses.append(pb_utils.InferenceResponse(
                [y, count], parameters={"wanted": ",".join(request.requested_output_names())}))
        return responses
"""
JOINED_CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "requests" data_type: TYPE_INT32 dims: [ 1 ] }
dynamic_batching { max_queue_delay_microseconds: 300000 }
"""

SAYS = """
class TritonPythonModel:
    def execute(self, requests):
        said = requests[0].inputs()[0].as_numpy()[0].decode()
        if said == "raise":
            raise ValueError("no such word")
        if said == "fewer":
            return []
        if said == "text":
            return ["text"]
        if said == "nothing":
            return None
        parameters = json.loads(requests[0].parameters() or "{}")
        facts = [type(self).__module__, requests[0].request_id(), parameters, requests[0].timeout() > 0]
        pb_utils.Logger.log_warn("said " + said)
        family = pb_utils.MetricFamily("words_said", "Words that were said", pb_utils.MetricFamily.COUNTER)
        family.Metric(labels={"word": said}).increment(2)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([json.dumps(facts)], object))])]
"""
SAYS_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
"""

COUNTS = """
class TritonPythonModel:
    def initialize(self, args):
        self.last_is_final = args["model_name"] == "ends"

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "n", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "i", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request,)).start()

    def count(self, request):
        sender = request.get_response_sender()
        n = int(request.inputs()[0].as_numpy()[0])
        for i in range(n):
            if sender.is_cancelled():
                return sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            response = pb_utils.InferenceResponse([pb_utils.Tensor("i", np.array([i], np.int32))])
            if self.last_is_final and i == n - 1:
                return sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            sender.send(response)
        if n < 0:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("n is negative")))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            assert "closed" in str(error)
"""

PAIRS = """
import os

class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 2
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        told = request.inputs()[0].as_numpy()[0, 0].decode()
        while told.startswith("/") and not os.path.exists(told):
            time.sleep(0.01)
        if told != "nothing":
            y = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[told]], object))])
            sender.send(y, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PAIRS_CONFIG = """
backend: "python" max_batch_size: 2
input { name: "x" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
dynamic_batching { max_queue_delay_microseconds: 100000000 }
model_transaction_policy { decoupled: True }
"""

WAITS = PAIRS.replace("        assert len(requests) == 2\n", "").replace(
    "        while told", "        open(told + '.began', 'w').close()\n        while told"
)
WAITS_CONFIG = PAIRS_CONFIG.replace(
    "dynamic_batching { max_queue_delay_microseconds: 100000000 }\n", ""
)
RELAYS = """
import asyncio, os

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            what, file = x[0, 0].decode().split()
            if what == "call":
                call = pb_utils.InferenceRequest(model_name="waits", requested_output_names=["y"],
                    inputs=[pb_utils.Tensor("x", np.array([[file]], object))])
                responses = await call.async_exec(decoupled=True)
                found = [one.has_error() for one in await asyncio.to_thread(list, responses)]
            elif what == "cancel":
                call = pb_utils.InferenceRequest(model_name="waits", requested_output_names=["y"],
                    inputs=[pb_utils.Tensor("x", np.array([[file]], object))])
                responses = call.exec(decoupled=True)
                responses.cancel()
                found = [one.error().code().name for one in responses]
            else:
                open(file + ".began", "w").close()
                while not os.path.exists(file):
                    await asyncio.sleep(0.01)
                found = []
            y = pb_utils.Tensor("y", np.array([[json.dumps(found)]], object))
            request.get_response_sender().send(
                pb_utils.InferenceResponse([y]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CALLS = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(one) for one in requests]

    async def answer(self, request):
        n = pb_utils.get_input_tensor_by_name(request, "n")
        count = pb_utils.InferenceRequest(model_name="counts", inputs=[n], requested_output_names=["i"])
        responses = await count.async_exec(decoupled=True)
        counted = list(responses)
        found = [one.output_tensors()[0].as_numpy()[0] for one in counted if one.output_tensors()]
        ends = pb_utils.InferenceRequest(model_name="ends", inputs=[n], requested_output_names=["i"])
        ended = [one.output_tensors()[0].as_numpy()[0] for one in ends.exec(decoupled=True)]
        errors = [one.error().message() for one in counted if one.has_error()]
        assert len(counted) == len(found) + 1 and ended == found, (found, errors, ended)
        x = pb_utils.Tensor("x", np.array([[1, 2]], np.float32))
        joined = pb_utils.InferenceRequest(model_name="joined", inputs=[x], requested_output_names=["y"])
        y = joined.exec()
        missing = pb_utils.InferenceRequest(model_name="missing", inputs=[], requested_output_names=[]).exec()
        facts = [int(sum(found)), y.output_tensors()[0].as_numpy().tolist(), y.parameters(),
                 missing.error().message(), str(missing.error().code().name),
                 pb_utils.is_model_ready("joined"), pb_utils.is_model_ready("joined", "1")]
        return pb_utils.InferenceResponse([pb_utils.Tensor("facts", np.array([json.dumps(facts)], object))])
"""
CALLS_CONFIG = """
backend: "python"
input { name: "n" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "facts" data_type: TYPE_STRING dims: [ 1 ] }
"""

SHORTENS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one.inputs()[0].as_numpy()[1:])])
                for one in requests]
"""
OPEN_VECTORS = """
input { name: "x" data_type: TYPE_INT32 dims: [ -1 ] } output { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
TWO_STEPS = """
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "shortens" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "shorter" } },
  { model_name: "shortens" model_version: -1
    input_map { key: "x" value: "shorter" } output_map { key: "y" value: "y" } } ] }
"""

SEQUENCE = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            given = {one.name(): one.as_numpy().reshape(-1)[0] for one in request.inputs()}
            name = request.correlation_id()
            assert given["ID"] == name and bool(request.flags() & 1) == bool(given["START"])
            self.sums[name] = given["x"] + (0 if given["START"] else self.sums[name])
            y = pb_utils.Tensor("y", np.array([[self.sums[name]]], np.int32))
            responses.append(pb_utils.InferenceResponse([y]))
        return responses
"""
SEQUENCE_CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching { max_sequence_idle_microseconds: 60000000
  control_input [ { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } },
                  { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } ] }
"""

IDS = """
class TritonPythonModel:
    def execute(self, requests):
        y = pb_utils.Tensor("y", np.array([[len(requests)]], np.int32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
IDS_CONFIG = SEQUENCE_CONFIG.replace(
    "sequence_batching {",
    "sequence_batching { oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 300000 }",
)

TENSORS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = {one.name(): one for one in request.inputs()}
            x = np.from_dlpack(given["x"])
            halves = pb_utils.Tensor.from_dlpack("halves", given["x"].to_dlpack())
            turned = pb_utils.Tensor("turned", x.T)
            try:
                given["b"].as_numpy()
            except pb_utils.TritonModelException:
                import torch
                b = torch.from_dlpack(given["b"].to_dlpack())
            extra = "extra" in given
            responses.append(pb_utils.InferenceResponse([
                halves, turned, pb_utils.Tensor("twice", (b * 2).float().numpy()),
                pb_utils.Tensor.from_dlpack("same", b),
                pb_utils.Tensor("has_extra", np.array([extra]))]))
        return responses
"""
TENSORS_CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 3 ] }, { name: "b" data_type: TYPE_BF16 dims: [ 2 ] },
        { name: "extra" data_type: TYPE_INT8 dims: [ 1 ] optional: true } ]
output [ { name: "halves" data_type: TYPE_FP32 dims: [ 2, 3 ] }, { name: "turned" data_type: TYPE_FP32 dims: [ 3, 2 ] },
         { name: "twice" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "same" data_type: TYPE_BF16 dims: [ 2 ] },
         { name: "has_extra" data_type: TYPE_BOOL dims: [ 1 ] } ]
"""

AGAIN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            self.times = getattr(self, "times", 0) + 1
            if self.times % 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                y = pb_utils.Tensor("y", np.array([self.times], np.int32))
                responses.append(pb_utils.InferenceResponse([y]))
        return responses
"""
AGAIN_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching { iterative_sequence: true }
"""

BROKEN = {
    "no_class": ("x = 1", "has no class TritonPythonModel"),
    "no_execute": ("class TritonPythonModel: pass", "no method execute(requests); add one"),
    "exits": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        import sys\n        sys.exit(3)\n"
        "    def execute(self, requests): return []",
        "SystemExit",
    ),
    "asks_early": (
        "class TritonPythonModel:\n    def initialize(self, args):\n"
        "        pb_utils.InferenceRequest(model_name='joined', inputs=[], requested_output_names=[]).exec()\n"
        "    def execute(self, requests): return []",
        "BLS is only supported during the 'execute' function",
    ),
    "contradicts": (
        "class TritonPythonModel:\n"
        "    @staticmethod\n"
        "    def auto_complete_config(config):\n"
        "        config.add_input({'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [3]})\n"
        "        return config\n"
        "    def execute(self, requests): return []",
        "auto_complete_config with [3]",
    ),
}


def write(root, name, code, config=""):
    (root / name / "1").mkdir(parents=True)
    (root / name / "1/model.py").write_text(HEAD + code)
    if config:
        (root / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    write(root, "joined", JOINED, JOINED_CONFIG)
    write(root, "says", SAYS, SAYS_CONFIG)
    write(root, "counts", COUNTS)
    write(root, "ends", COUNTS)
    write(root, "pairs", PAIRS, PAIRS_CONFIG)
    write(root, "waits", WAITS, WAITS_CONFIG)
    write(root, "relays", RELAYS, WAITS_CONFIG)
    write(root, "calls", CALLS, CALLS_CONFIG)
    write(root, "shortens", SHORTENS, f'backend: "python"{OPEN_VECTORS}')
    (root / "two_steps/1").mkdir(parents=True)
    (root / "two_steps/config.pbtxt").write_text(TWO_STEPS + OPEN_VECTORS)
    write(root, "sequence", SEQUENCE, SEQUENCE_CONFIG)
    write(root, "ids", IDS, IDS_CONFIG)
    write(root, "tensors", TENSORS, TENSORS_CONFIG)
    write(root, "again", AGAIN, AGAIN_CONFIG)
    for name, (code, _) in BROKEN.items():
        write(
            root,
            name,
            code,
            'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }',
        )
    with Server([root], ready_when="any", start_timeout=240) as running:
        wait_until(lambda: requests.get(f"{running.url}/v2/health/ready").status_code == 200)
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module = getattr(tritonclient, request.param)
    address = server.http if request.param == "http" else server.grpc
    with module.InferenceServerClient(address) as one:
        yield one


def given(client, **arrays):
    module = tritonclient.http if "http" in type(client).__module__ else tritonclient.grpc
    found = []
    for name, array in arrays.items():
        datatype = {"O": "BYTES", "u2": "BF16"}.get(array.dtype.str[1:])
        datatype = datatype or tritonclient.utils.np_to_triton_dtype(array.dtype)
        one = module.InferInput(name, array.shape, datatype)
        if datatype == "BF16":  # the client would want a package for it
            one._raw_data = one._raw_content = array.tobytes()
            if module is tritonclient.http:
                one._parameters["binary_data_size"] = array.nbytes
        else:
            one.set_data_from_numpy(array)
        found.append(one)
    return found


def text(client, model, name, **arrays):
    return json.loads(client.infer(model, given(client, **arrays)).as_numpy(name).reshape(-1)[0])


def test_requests_of_a_batch_have_tensors_errors_and_parameters_of_their_own(server):
    answers = {}

    def ask(first):
        with tritonclient.http.InferenceServerClient(server.http) as client:
            x = np.array([[first, 7]], np.float32)
            try:
                answers[first] = client.infer("joined", given(client, x=x))
            except InferenceServerException as error:
                answers[first] = error

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, (1, 2, 3, -1)))
    assert "x is negative" in str(answers.pop(-1))
    for first, answer in answers.items():
        assert answer.as_numpy("y").tolist() == [[first] * first + [7] * first]
        assert answer.get_response()["parameters"]["wanted"] == "y,requests"
    assert max(int(answer.as_numpy("requests")[0, 0]) for answer in answers.values()) > 1


def test_the_code_of_an_error_is_its_status(server):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [-1, 0]}]}
    answer = requests.post(f"{server.url}/v2/models/joined/infer", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "x is negative")
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    with client, pytest.raises(InferenceServerException) as caught:
        client.infer("joined", given(client, x=np.array([[-1, 0]], np.float32)))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("raise", "ValueError: no such word"),
        ("fewer", "Number of InferenceResponse objects do not match"),
        ("text", "Expected an 'InferenceResponse' object"),
    ],
)
def test_what_execute_does_wrong_is_told(client, word, told):
    with pytest.raises(InferenceServerException, match=told):
        client.infer("says", given(client, x=np.array([word], object)))


def test_a_request_is_as_its_client_made_it(client, server):
    inputs = given(client, x=np.array(["hello"], object))
    parameters = {"depth": 3, "name": "a", "deep": True}
    answer = client.infer(
        "says", inputs, request_id="r1", parameters=parameters, timeout=50_000_000
    )
    assert json.loads(answer.as_numpy("y")[0]) == ["1.model", "r1", parameters, True]
    wait_until(lambda: "said hello" in server.log)
    page = f"{server.url}/metrics"
    wait_until(lambda: 'words_said{word="hello"}' in requests.get(page).text)
    assert "# HELP words_said Words that were said" in requests.get(page).text


def test_a_decoupled_model_answers_any_number_of_times(server):
    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for n in (3, 0, 1, -1):
            inputs = given(client, n=np.array([n], np.int32))
            client.async_stream_infer(
                "counts", inputs, request_id=str(n), enable_empty_final_response=True
            )
        found, ended, errors = {}, set(), []
        while len(ended) + len(errors) < 4:
            result, error = answers.get(timeout=60)
            if error is not None:
                errors.append(str(error))
                continue
            response = result.get_response()
            if response.outputs:
                found.setdefault(response.id, []).append(int(result.as_numpy("i")[0]))
            if response.parameters["triton_final_response"].bool_param:
                ended.add(response.id)
    assert found == {"3": [0, 1, 2], "1": [0]}
    assert ended == {"3", "0", "1"}
    assert "n is negative" in errors[0]


def test_a_decoupled_model_says_with_each_response_whether_it_is_the_last(server):
    marks = {}

    def take(result, error):
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        marks.setdefault(response.id, []).append((len(response.outputs), final))

    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(take)
        three = given(client, n=np.array([3], np.int32))
        for model in ("counts", "ends"):
            client.async_stream_infer(model, three, request_id=model)
            asked = {"request_id": f"{model}, asked", "enable_empty_final_response": True}
            client.async_stream_infer(model, three, **asked)
        client.stop_stream()
    more, last, empty = (1, False), (1, True), (0, True)
    assert marks == {
        "counts": [more, more, more],
        "counts, asked": [more, more, more, empty],
        "ends": [more, more, last],
        "ends, asked": [more, more, last],
    }


@pytest.mark.parametrize("short", ["word", "nothing"])
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_request_of_a_decoupled_model_ends_before_others_of_its_batch(
    server, tmp_path, short, comes_first
):
    answers, held = queue.Queue(), tmp_path / "held"
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for told in (short, str(held)) if comes_first else (str(held), short):
            inputs = given(client, x=np.array([[told]], object))
            client.async_stream_infer(
                "pairs", inputs, request_id=told, enable_empty_final_response=True
            )
        for told, outputs in ((short, short != "nothing"), (str(held), True)):
            result, error = answers.get(timeout=60)
            assert error is None
            response = result.get_response()
            assert (response.id, bool(response.outputs)) == (told, outputs)
            assert response.parameters["triton_final_response"].bool_param
            held.touch()


def test_a_call_of_a_coroutine_outlives_other_requests_of_its_model(server, tmp_path):
    answers, first, called = queue.Queue(), tmp_path / "first", tmp_path / "called"
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for what, file in (("wait", first), ("call", called)):
            inputs = given(client, x=np.array([[f"{what} {file}"]], object))
            client.async_stream_infer("relays", inputs)
            wait_until(file.with_name(f"{file.name}.began").exists)
        for file, wanted in ((first, []), (called, [False])):
            file.touch()
            result, error = answers.get(timeout=60)
            assert error is None
            assert json.loads(result.as_numpy("y")[0, 0]) == wanted


def test_a_call_that_its_model_gives_up_ends_as_cancelled(server, client, tmp_path):
    asked = np.array([[f"cancel {tmp_path / 'never'}"]], object)
    assert text(client, "relays", "y", x=asked) == ["CANCELLED"]
    (tmp_path / "never").touch()


def test_a_decoupled_model_asked_for_one_answer(server, client):
    assert client.infer("counts", given(client, n=np.array([1], np.int32))).as_numpy("i") == [0]
    for n, told in ((2, "answered 2 times"), (0, "sent no response")):
        with pytest.raises(InferenceServerException, match=told):
            client.infer("counts", given(client, n=np.array([n], np.int32)))


def test_auto_complete_config_is_what_clients_see(server):
    config = requests.get(f"{server.url}/v2/models/counts/config").json()
    assert config["input"][0]["dims"] == [1]
    assert config["model_transaction_policy"] == {"decoupled": True}
    metadata = requests.get(f"{server.url}/v2/models/counts").json()
    assert metadata["platform"] == "python"
    assert metadata["outputs"] == [{"name": "i", "datatype": "INT32", "shape": [1]}]


def test_a_model_calls_others(client):
    total, y, parameters, error, code, *ready = text(
        client, "calls", "facts", n=np.array([4], np.int32)
    )
    assert (total, y, code, ready) == (6, [[1, 2]], "NOT_FOUND", [True, True])
    assert '"wanted": "y"' in parameters
    assert "missing" in error


def test_an_ensemble_may_answer_nothing_in_an_open_size(client):
    for given_values, left in (([1, 2, 3], [3]), ([1, 2], [])):
        x = np.array(given_values, np.int32)
        found = client.infer("two_steps", given(client, x=x)).as_numpy("y")
        assert found.tolist() == left


def test_sequences_have_control_inputs_and_a_correlation_id(client):
    for number, x in ((7, 1), (8, 10), (7, 2), (8, 20)):
        answer = client.infer(
            "sequence",
            given(client, x=np.array([[x]], np.int32)),
            sequence_id=number,
            sequence_start=x in (1, 10),
            sequence_end=x in (2, 20),
        )
        assert answer.as_numpy("y").tolist() == [[{1: 1, 10: 10, 2: 3, 20: 30}[x]]]


def test_an_id_that_does_not_fit_fails_its_own_request_alone(server):
    answers = {}

    def ask(sequence_id):
        with tritonclient.http.InferenceServerClient(server.http) as client:
            x = given(client, x=np.array([[1]], np.int32))
            try:
                answers[sequence_id] = client.infer(
                    "ids", x, sequence_id=sequence_id, sequence_start=True, sequence_end=True
                )
            except InferenceServerException as error:
                answers[sequence_id] = error

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, (1, "a text", 2, 3)))
    assert "takes ids of sequences as UINT64" in str(answers.pop("a text"))
    assert all(1 <= answer.as_numpy("y")[0, 0] <= 3 for answer in answers.values()), answers


def test_tensors_go_to_numpy_and_dlpack_and_back(client):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2
    answer = client.infer("tensors", given(client, x=x, b=b))
    np.testing.assert_array_equal(answer.as_numpy("halves"), x)
    np.testing.assert_array_equal(answer.as_numpy("turned"), x.T)
    np.testing.assert_array_equal(answer.as_numpy("twice"), [2, 4])
    assert "BF16" in str(answer.get_response())
    assert not answer.as_numpy("has_extra")[0]
    answer = client.infer("tensors", given(client, x=x, b=b, extra=np.array([1], np.int8)))
    assert answer.as_numpy("has_extra")[0]


def test_a_rescheduled_request_is_executed_again(client):
    answer = client.infer("again", given(client, x=np.array([1], np.int32)))
    assert answer.as_numpy("y")[0] % 3 == 0


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_cannot_be_loaded_says_why(server, name):
    index = requests.post(f"{server.url}/v2/repository/index", json={}).json()
    reason = next(one["reason"] for one in index if one["name"] == name)
    assert BROKEN[name][1] in reason
