"""Outputs that clients ask for as PNGs and JPEGs, over REST and gRPC, in the worker and in a process."""

import cv2
import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.client.errors import InvalidRequest, StatusError
from ksrv.testing import Server
from tests.support.images import files

HANDLER = """
def inference(x):
    return {
        "picture": x, "swapped": x, "mask": x[..., 0] > 127, "grey": x[..., :1],
        "deep": x[..., 0].astype("uint16") * 257, "alpha": x[..., [0, 1, 2, 2]], "numbers": x,
    }
"""
MODEL = """
handler: handler.py
executor: {executor}
inputs: [{{name: x, datatype: UINT8, shape: [-1, -1, -1, 3]}}]
outputs:
  - {{name: picture, datatype: UINT8, shape: [-1, -1, -1, 3], image: {{}}}}
  - {{name: swapped, datatype: UINT8, shape: [-1, -1, -1, 3], image: {{color: BGR, quality: 40}}}}
  - {{name: mask, datatype: BOOL, shape: [-1, -1, -1], image: {{formats: [png]}}}}
  - {{name: grey, datatype: UINT8, shape: [-1, -1, -1, 1], image: {{}}}}
  - {{name: deep, datatype: UINT16, shape: [-1, -1, -1], image: {{}}}}
  - {{name: alpha, datatype: UINT8, shape: [-1, -1, -1, 4], image: {{}}}}
  - {{name: numbers, datatype: UINT8, shape: [-1, -1, -1, 3]}}
batching: {{max_batch_size: 4, split: true}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for name, executor in (("echo", "inline"), ("separate", "process")):
        model = repository / name
        model.mkdir()
        (model / "handler.py").write_text(HANDLER)
        (model / "model.yaml").write_text(MODEL.format(executor=executor))
    with Server(repository) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    url = server.http if request.param == "http" else f"grpc://{server.grpc}"
    with Client(url) as made:
        yield made


def pictures(count=1, height=37, width=53):
    return np.stack([files.pixels(height, width, 3, seed) for seed in range(count)])


def decoded(file, flags=cv2.IMREAD_UNCHANGED):
    return cv2.imdecode(np.frombuffer(file, np.uint8), flags)


@pytest.mark.parametrize("model", ["echo", "separate"])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_pngs_hold_the_rows(client, model, count):
    rgb = pictures(count)
    names = ("picture", "swapped", "mask", "grey", "deep", "alpha")
    answer = client.infer(model, rgb, outputs={name: {"image": "png"} for name in names})
    wanted = {
        "picture": rgb[..., ::-1],
        "swapped": rgb,
        "mask": np.where(rgb[..., 0] > 127, 255, 0),
        "grey": rgb[..., 0],
        "deep": rgb[..., 0].astype(np.uint16) * 257,
        "alpha": rgb[..., [2, 1, 0, 2]],
    }
    for name in names:
        elements = answer[name]
        assert elements.shape == (count,), name
        for row, file in enumerate(elements):
            np.testing.assert_array_equal(decoded(file), wanted[name][row], name)


def test_jpegs_have_the_quality_asked_for(client):
    rgb = pictures()

    def size(name, **parameters):
        (file,) = client.infer("echo", rgb, outputs={name: {"image": "jpeg", **parameters}})[name]
        assert decoded(file).shape == rgb.shape[1:]
        _, wanted = cv2.imencode(".jpg", rgb[0], [cv2.IMWRITE_JPEG_QUALITY, 90])
        return len(file), len(wanted)

    assert size("picture", quality=100)[0] > size("picture")[0] > size("picture", quality=10)[0]
    own, _ = size("swapped")
    _, file = cv2.imencode(".jpg", rgb[0], [cv2.IMWRITE_JPEG_QUALITY, 40])
    assert own == len(file)


def test_without_the_parameter_an_output_is_numbers(client):
    rgb = pictures(2)
    answer = client.infer("echo", rgb, outputs={"picture": {}, "mask": {"image": "png"}})
    np.testing.assert_array_equal(answer["picture"], rgb)
    assert answer["mask"].shape == (2,)


@pytest.mark.parametrize(
    ("output", "parameters", "said"),
    [
        ("numbers", {"image": "png"}, "does not declare it as images"),
        ("picture", {"image": "webp"}, "expected png or jpeg, not 'webp'"),
        ("picture", {"image": True}, "expected png or jpeg"),
        ("picture", {"image": ""}, "expected png or jpeg"),
        ("mask", {"image": "jpeg"}, "expected png, not 'jpeg'"),
        ("deep", {"image": "jpeg"}, "expected png, not 'jpeg'"),
        ("alpha", {"image": "jpeg"}, "expected png, not 'jpeg'"),
        ("picture", {"image": "jpeg", "quality": 0}, "from 1 to 100, not '0'"),
        ("picture", {"image": "jpeg", "quality": 101}, "from 1 to 100"),
        ("picture", {"image": "jpeg", "quality": "90"}, "from 1 to 100"),
        ("picture", {"image": "jpeg", "quality": True}, "from 1 to 100"),
        ("picture", {"image": "png", "classification": 2}, "as images and as classes"),
    ],
)
def test_unavailable_encoding_is_refused(client, output, parameters, said):
    with pytest.raises(InvalidRequest, match=said):
        client.infer("echo", pictures(), outputs={output: parameters})


def test_a_picture_without_pixels_is_the_handlers_failure(client):
    empty = np.zeros((1, 0, 5, 3), np.uint8)
    with pytest.raises(StatusError):
        client.infer("echo", empty, outputs={"picture": {"image": "png"}})


def test_the_metadata_names_the_formats(server):
    properties = requests.get(f"http://{server.http}/v2/models/echo", timeout=30).json()[
        "properties"
    ]
    assert properties["picture.image.formats"] == "png,jpeg"
    assert properties["deep.image.formats"] == "png"
    assert "numbers.image.formats" not in properties
