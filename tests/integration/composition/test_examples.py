"""The examples that compose models and that stream, with the same code over every way to reach them."""

import concurrent.futures

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.testing import Server, load
from tests.support.paths import ROOT
from tests.support.streams import StreamedResponse, pieces

WAYS = ("rest", "rest-stream", "grpc", "grpc-stream", "testing", "testing-stream")
MODELS = {"composition": "pipeline", "streaming": "storyteller", "coroutines": "panel"}


def plain(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def example(request):
    folder, name = ROOT / "examples" / request.param, MODELS[request.param]
    with (
        Server(folder) as server,
        load(folder, model=name) as model,
        Client(server.url) as rest,
        Client(f"grpc://{server.grpc}") as grpc,
    ):

        def ask(way, values, **parameters):
            caller, _, kind = way.partition("-")
            asked = {"rest": rest, "grpc": grpc, "testing": model}[caller]
            call = asked.stream if kind else asked.infer
            arguments = (values,) if asked is model else (name, values)
            found = call(*arguments, parameters=parameters)
            return [
                {one: list(map(plain, array.ravel().tolist())) for one, array in answer.items()}
                for answer in (found if kind else [found])
            ]

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
    expected = words if way.endswith("stream") else ["".join(words)]
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
