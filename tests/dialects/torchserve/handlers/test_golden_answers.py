"""Recorded requests and answers of TorchServe 0.12.0: loaders, formats, routes, built-in handlers.

If ksrv's answer differs on purpose, the test gives the reason.
"""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ksrv.dialects.torchserve.api.handlers.vision_handler import ImageClassifier, decode_image
from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.torchserve.golden_models import (
    content_of,
    encoded,
    golden_classifier,
    picture,
    recorded,
)

PREDICTIONS = recorded("predictions.json")
BUILT_IN = recorded("builtin-handlers.json")
CPU = {"deviceType": "cpu"}
COMPILE = {"enable": True, "backend": "eager", "mode": "default"}
BODY_LIMIT = 6_553_500  # TorchServe's default


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = tmp_path_factory.mktemp("golden") / "store"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def routes(store, model_files):
    """The models of predictions.json, in every archive format."""
    script = {"files": model_files, "model": "line.pt", "settings": CPU}
    eager = {"files": model_files, "model": "line.pth", "definition": "line.py"}
    lin = "recorded_handler.py"
    archive(store, "lin", lin, labels=True, **script)
    archive(store, "lintgz", lin, form="tgz", **script)
    archive(store, "lindir", lin, form="no-archive", **script)
    archive(store, "linstore", lin, form="zip-store", **script)
    archive(store, "lineager", lin, settings=CPU, **eager)
    archive(store, "linpt2", lin, **script | {"settings": CPU | {"pt2": {"compile": COMPILE}}})
    archive(store, "linpt2eager", lin, settings=CPU | {"pt2": {"compile": COMPILE}}, **eager)
    nope = {"pt2": {"compile": COMPILE | {"backend": "nope"}}}
    archive(store, "linpt2bad", lin, **script | {"settings": CPU | nope})
    archive(store, "base", "base_handler", **script)
    archive(store, "fn", "function_handler.py", settings=CPU)
    archive(
        store, "img", "channels_handler.py", files=model_files, model="img.pt", settings=CPU
    )  # fmt: skip
    with Server(
        store, torchserve_api=True, start_timeout=200, limits={"body": BODY_LIMIT}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def vision(tmp_path_factory, model_files):
    store = tmp_path_factory.mktemp("vision") / "store"
    store.mkdir()
    labels = [model_files / "ten" / "index_to_name.json"]
    for name, handler, file, extra in (
        ("cls", "image_classifier", "cls.pt", labels),
        ("clsnomap", "image_classifier", "cls.pt", []),
        ("seg", "image_segmenter", "seg.pt", []),
        ("det", "object_detector", "det.pt", labels),
    ):
        archive(store, name, handler, files=model_files, model=file, extra=extra, settings=CPU)
    archive(
        store, "cls8", "image_classifier", files=model_files, model="cls.pt", extra=labels,
        settings=CPU | {"batchSize": 8, "maxBatchDelay": 60_000},
    )  # fmt: skip
    with Server(store, torchserve_api=True, start_timeout=200) as server:
        yield server


def sent(server, request):
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request(
        request["method"], request["path"], content_of(request), dict(request["headers"])
    )
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


ROUTES = [
    "P01", "P02", "P03", "P05", "P06", "P07", "P08", "P09", "P10", "P12", "P13", "P14", "P18", "P19",
    "P20", "P21", "P22", "P23", "P24", "P26", "P27", "P28", "P30", "P31",
]  # fmt: skip


@pytest.mark.parametrize("case", ROUTES)
def test_answers_of_loaders_formats_and_routes(routes, case):
    request, expected = PREDICTIONS[case]["request"], PREDICTIONS[case]["response"]
    status, headers, body = sent(routes, request)
    text = expected["body"]["text"].replace('"Lin"', '"Line"')  # the class of this test's file
    assert (status, body) == (expected["status"], text)
    if "content-type" in expected["headers"]:
        assert headers["content-type"] == expected["headers"]["content-type"]


def test_function_is_called_once_at_load_and_then_for_each_batch(routes):
    for case in ("P15", "P16"):
        _, _, body = sent(routes, PREDICTIONS[case]["request"])
        known = json.loads(PREDICTIONS[case]["response"]["body"]["text"])
        assert json.loads(body)["calls"] == known["calls"]


def test_body_above_the_limit_has_an_empty_answer(routes):
    expected = PREDICTIONS["P29"]["response"]
    request = PREDICTIONS["P29"]["request"] | {"path": "/predictions/img"}
    assert sent(routes, request)[::2] == (expected["status"], expected["body"]["text"])
    assert expected["status"] == 413
    following = PREDICTIONS["P18"]  # the server still serves
    assert sent(routes, following["request"])[2] == following["response"]["body"]["text"]


@pytest.mark.parametrize("path", ["/invocations", "/invocations?name=img"])
def test_invocation_must_name_a_model(routes, path):
    status, _, body = sent(routes, PREDICTIONS["P27"]["request"] | {"path": path})
    assert (status, json.loads(body)) == (
        400,
        {
            "code": 400,
            "type": "BadRequestException",
            "message": "Parameter model_name is required.",
        },
    )


def test_part_of_the_body_names_the_model(routes):
    request = PREDICTIONS["P20"]["request"]
    content = content_of(request).removesuffix(b"--ksrvboundary--\r\n")
    content += b'--ksrvboundary\r\nContent-Disposition: form-data; name="model_name"\r\n\r\nimg'
    connection = http.client.HTTPConnection(routes.http, timeout=60)
    connection.request(
        "POST", "/invocations", content + b"\r\n--ksrvboundary--\r\n", request["headers"]
    )
    answer = connection.getresponse()
    assert answer.read().decode() == PREDICTIONS["P20"]["response"]["body"]["text"]
    connection.close()


def test_base_handler_takes_a_list_of_numbers(routes):
    """P11. TorchServe's default preprocess fails on every plain row; ksrv's makes a tensor of it."""
    request = PREDICTIONS["P11"]["request"] | {"body": {"text": "[1.0, 2, 3, 4]"}}
    assert PREDICTIONS["P11"]["response"]["status"] == 503
    status, _, body = sent(routes, request)
    assert (status, json.loads(body)) == (200, [2.5, 5.5, 10.0])


def near(found, expected):
    """Compare answers; the recorded note allows 1e-6 between machines."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            near(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            near(one, other)
    else:
        assert found == (
            pytest.approx(expected, abs=1e-6) if expected != int(expected) else expected
        )


@pytest.mark.parametrize("case", ["H01", "H02", "H03", "H04", "H06", "H07", "H08", "H13"])
def test_answers_of_the_built_in_handlers(vision, case):
    request, expected = BUILT_IN[case]["request"], BUILT_IN[case]["response"]
    status, _, body = sent(vision, request)
    assert status == expected["status"], body
    near(json.loads(body), json.loads(expected["body"]["text"]))
    assert body.startswith(("{\n  ", "[\n  "))


@pytest.mark.parametrize("case", ["H05", "H11"])
def test_what_the_built_in_handlers_refuse(vision, case):
    request, expected = BUILT_IN[case]["request"], BUILT_IN[case]["response"]
    assert sent(vision, request)[::2] == (expected["status"], expected["body"]["text"])


@pytest.mark.parametrize("case", ["H09", "H10"])
def test_other_modes_are_read_as_rgb(vision, case):
    """TorchServe fails on images with one or four channels; here they just work."""
    assert BUILT_IN[case]["response"]["status"] == 503
    status, _, body = sent(vision, BUILT_IN[case]["request"])
    assert status == 200, body
    if case == "H10":  # the opaque picture is the picture
        near(json.loads(body), json.loads(BUILT_IN["H01"]["response"]["body"]["text"]))


MODES = {
    "palette": picture().quantize(32),
    "grey with alpha": picture().convert("LA"),
    "one bit": picture().convert("1"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["cls", "seg", "det"])
def test_every_mode_is_the_rgb_image(vision, name, mode):
    request = {"method": "POST", "path": f"/predictions/{name}", "headers": {}}
    with_pixels = [encoded(MODES[mode]), encoded(MODES[mode].convert("RGB"))]
    found, wanted = (sent(vision, request | {"content": one}) for one in with_pixels)
    assert (found[0], found[2]) == (200, wanted[2])


def test_one_bad_file_among_eight_fails_alone(vision):
    """TorchServe fails all eight (its issue 1329)."""
    request = BUILT_IN["H01"]["request"] | {"path": "/predictions/cls8"}
    bad = request | {"content": b"no image"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: sent(vision, one), [*[request] * 7, bad]))
    assert [status for status, _, _ in answers] == [200] * 7 + [503]
    refused = BUILT_IN["H11"]["response"]
    assert answers[7][2] == refused["body"]["text"]
    for _, _, body in answers[:7]:
        near(json.loads(body), json.loads(BUILT_IN["H01"]["response"]["body"]["text"]))


def test_explanation_of_the_classifier_adds_up(vision):
    """The attributions of class 0 sum to what the picture adds to its score."""
    content = encoded(picture())
    connection = http.client.HTTPConnection(vision.http, timeout=60)
    connection.request("POST", "/explanations/cls", content)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, document
    attributions = torch.tensor(document)
    assert attributions.shape == (3, 224, 224)
    classifier = ImageClassifier()
    prepared = classifier.image_processing(decode_image(content))[None]
    model = golden_classifier()
    with torch.inference_mode():
        gain = (model(prepared) - model(torch.zeros_like(prepared)))[0, 0]
    assert float(attributions.sum()) == pytest.approx(float(gain), rel=0.05)


def test_mask_of_the_segmenter(vision):
    expected = BUILT_IN["H12"]["response"]["body"]
    status, _, body = sent(vision, BUILT_IN["H12"]["request"])
    assert status == 200
    mask = json.loads(body)
    height, width, depth = expected["shape"]
    assert (len(mask), {len(row) for row in mask}) == (height, {width})
    assert {len(pixel) for row in mask for pixel in row} == {depth}
    for place, value in expected["at"].items():
        row, column = map(int, place.split(","))
        assert mask[row][column] == pytest.approx(value, abs=1e-6)
    classes = [pixel[0] for row in mask for pixel in row]
    counts = {name: classes.count(float(name)) for name in expected["class_counts"]}
    assert counts == expected["class_counts"]
    total = sum(pixel[1] for row in mask for pixel in row)
    assert total == pytest.approx(expected["probability_sum"], abs=1e-2)
