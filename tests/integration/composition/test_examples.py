"""The examples that compose models and that stream, as a reader would run them."""

import cv2
import numpy as np

from ksrv.testing import Server
from tests.support.paths import ROOT
from tests.support.streams import StreamedResponse, pieces


def test_detect_crop_and_classify():
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[10:30, 20:44] = (0, 200, 0)
    blue = np.zeros((64, 64, 3), np.uint8)
    blue[0:5, 0:9] = (0, 0, 220)
    rows = np.stack([picture, blue])
    document = {
        "inputs": [
            {
                "name": "image",
                "datatype": "UINT8",
                "shape": list(rows.shape),
                "data": rows.ravel().tolist(),
            }
        ]
    }
    with Server(ROOT / "examples" / "composition") as server:
        path = "/v2/models/pipeline/infer"
        with StreamedResponse(server, path, document, None) as found:
            [answer] = found.lines()
        with StreamedResponse(server, path, document) as found:
            [(_, event)] = found.events()
    assert answer == event
    box, colour = (output["data"] for output in answer["outputs"])
    assert box == [20, 10, 44, 30, 0, 0, 9, 5]
    assert colour == ["green", "blue"]
    assert cv2.imencode(".png", picture)[0]


def test_the_storyteller_streams():
    asked = {"text_input": "Once upon a time", "parameters": {"max_tokens": 6}}
    expected = ["Once ", "upon ", "a ", "time ", "and ", "they "]
    with Server(ROOT / "examples" / "streaming") as server:
        path = "/v2/models/storyteller"
        with StreamedResponse(server, f"{path}/generate_stream", asked) as found:
            assert [document["text_output"] for _, document in found.events()] == expected
        with StreamedResponse(server, f"{path}/generate", asked, None) as found:
            assert next(found.lines())["text_output"] == "".join(expected)
        inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Once"]}]
        document = {"inputs": inputs, "parameters": {"max_tokens": 2}}
        with StreamedResponse(server, f"{path}/infer", document, "application/jsonl") as found:
            assert pieces(found.lines()) == ["Once ", "and "]
