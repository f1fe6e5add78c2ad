"""The examples that compose models and that stream, with the same code over every way to reach them."""

import concurrent.futures
import queue

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from ksrv.testing import Server, load
from tests.support.paths import ROOT
from tests.support.streams import StreamedResponse, pieces

EXAMPLES = ROOT / "examples"
WAYS = ("rest", "events", "lines", "grpc", "grpc-stream", "testing", "testing-stream")


def tensors(model, values, parameters):
    """The inputs of a request in KServe's JSON."""
    [name] = values
    array = values[name]
    datatype = "BYTES" if array.dtype == object else "UINT8"
    return {
        "inputs": [
            {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
                "data": [
                    one.decode() if isinstance(one, bytes) else one
                    for one in array.ravel().tolist()
                ],
            }
        ],
        "parameters": parameters,
    }


def over_http(server, model, values, parameters, accept):
    """Each answer of a request over REST: its outputs by name."""
    path = f"/v2/models/{model}/infer"
    with StreamedResponse(server, path, tensors(model, values, parameters), accept) as found:
        documents = (
            [document for _, document in found.events()]
            if accept == "text/event-stream"
            else list(found.lines())
        )
    return [{one["name"]: one["data"] for one in answer["outputs"]} for answer in documents]


def over_grpc(server, values, model, parameters, *, streamed):
    [name] = values
    array = values[name]
    datatype = "BYTES" if array.dtype == object else "UINT8"
    tensor = triton_grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    with triton_grpc.InferenceServerClient(str(server.grpc)) as client:
        if not streamed:
            return [named(client.infer(model, [tensor], parameters=parameters))]
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            model, [tensor], parameters=parameters, enable_empty_final_response=True
        )
        found = []
        while True:
            result, error = answers.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                found.append(named(result))
            if response.parameters["triton_final_response"].bool_param:
                return found


def named(result):
    return {
        one.name: [plain(value) for value in result.as_numpy(one.name).ravel().tolist()]
        for one in result.get_response().outputs
    }


def plain(value):
    return value.decode() if isinstance(value, bytes) else value


def in_process(model, values, parameters, *, streamed):
    answers = (
        model.stream(values, parameters=parameters)
        if streamed
        else [model.infer(values, parameters=parameters)]
    )
    return [
        {name: [plain(value) for value in array.ravel().tolist()] for name, array in one.items()}
        for one in answers
    ]


@pytest.fixture(scope="module")
def example(request):
    folder = EXAMPLES / request.param
    name = {"composition": "pipeline", "streaming": "storyteller", "coroutines": "panel"}
    with Server(folder) as server, load(folder, model=name[request.param]) as model:

        def ask(way, values, **parameters):
            known = name[request.param]
            accept = {"events": "text/event-stream", "lines": "application/jsonl"}.get(way)
            if way.startswith("testing"):
                return in_process(model, values, parameters, streamed=way.endswith("stream"))
            if way.startswith("grpc"):
                streamed = way.endswith("stream")
                return over_grpc(server, values, known, parameters, streamed=streamed)
            return over_http(server, known, values, parameters, accept)

        ask.server = server
        yield ask


@pytest.mark.parametrize("example", ["composition"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_detect_crop_and_classify(example, way):
    pictures = np.zeros((2, 64, 64, 3), np.uint8)
    pictures[0, 10:30, 20:44] = (0, 200, 0)
    pictures[1, 0:5, 0:9] = (0, 0, 220)
    assert example(way, {"image": pictures}) == [
        {"box": [20, 10, 44, 30, 0, 0, 9, 5], "colour": ["green", "blue"]}
    ]


@pytest.mark.parametrize("example", ["streaming"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_the_storyteller_streams(example, way):
    text = np.array([b"Once upon a time"], object)
    told = example(way, {"text_input": text}, max_tokens=6)
    words = ["Once ", "upon ", "a ", "time ", "and ", "they "]
    streamed = way in ("events", "lines", "grpc-stream", "testing-stream")
    expected = words if streamed else ["".join(words)]
    assert [one["text_output"] for one in told] == [[piece] for piece in expected]


@pytest.mark.parametrize("example", ["streaming"], indirect=True)
def test_the_storyteller_answers_generate_requests(example):
    server = example.server
    asked = {"text_input": "Once upon a time", "parameters": {"max_tokens": 6}}
    expected = ["Once ", "upon ", "a ", "time ", "and ", "they "]
    path = "/v2/models/storyteller"
    with StreamedResponse(server, f"{path}/generate_stream", asked) as found:
        assert [document["text_output"] for _, document in found.events()] == expected
    with StreamedResponse(server, f"{path}/generate", asked, None) as found:
        assert next(found.lines())["text_output"] == "".join(expected)
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Once"]}]
    document = {"inputs": inputs, "parameters": {"max_tokens": 2}}
    with StreamedResponse(server, f"{path}/infer", document, "application/jsonl") as found:
        assert pieces(found.lines()) == ["Once ", "and "]


@pytest.mark.parametrize("example", ["coroutines"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_the_panel_asks_its_members_at_the_same_time(example, way):
    answers = example(way, {"question": np.array([b"Is it red?", b"Is it blue?"], object)})
    assert answers == [{"verdict": ["yes, no", "no, yes"]}]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(example, way, {"question": np.array([b"red"], object)}) for _ in range(8)
        ]
    assert all(one.result() == [{"verdict": ["yes, no"]}] for one in asked)
