"""The same images over every way into a server: the same answer, and the same refusal of wrong images."""

import gzip
import json

import grpc
import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files
from tests.support.models import write_model
from tests.support.wire.grpc_calls import UNLIMITED, infer_request, stub_infer

PIXELS = 'def inference(image): return {"pixels": image}\n'
SETTINGS = """
inputs: [{name: image, datatype: UINT8, shape: [-1, 8, 8, 3], image: {color: RGB}}]
outputs: [{name: pixels, datatype: UINT8, shape: [-1, 8, 8, 3]}]
batching: {max_batch_size: 8}
"""
MODELS = ("inline", "process")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("transports")
    for model in MODELS:
        write_model(root, model, PIXELS, f"{SETTINGS}executor: {model}\n")
    with Server(root, start_timeout=120) as running:
        yield running


def prefixed(images):
    return b"".join(len(image).to_bytes(4, "little") + image for image in images)


def over_rest(server, model, images, way):
    block = prefixed(images)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(images)]}
    tensor["parameters"] = {"binary_data_size": len(block)}
    document = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    body = head + block
    data = body
    if way == "gzip":
        headers["Content-Encoding"] = "gzip"
        data = gzip.compress(body)
    elif way == "chunked":
        data = (body[at : at + 999] for at in range(0, len(body), 999))
    elif way == "expect":
        headers["Expect"] = "100-continue"
    url = f"{server.url}/v2/models/{model}/infer"
    answer = requests.post(url, data=data, headers=headers, timeout=60)
    if answer.status_code != 200:
        return (
            f"INVALID_ARGUMENT: {answer.json()['error']}"
            if answer.status_code == 400
            else answer.text
        )
    return answer.content[int(answer.headers["Inference-Header-Content-Length"]) :]


def over_grpc(server, model, images, way):
    request = infer_request(model, ("image", "BYTES", [len(images)]))
    if way == "raw":
        request.raw_input_contents.append(prefixed(images))
    elif way == "bare":
        request.raw_input_contents.append(images[0])
    else:
        request.inputs[0].contents.bytes_contents.extend(images)
    with grpc.insecure_channel(server.grpc, options=UNLIMITED) as channel:
        try:
            answer = stub_infer(channel)(request, timeout=60)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return answer.raw_output_contents[0]


WAYS = [
    (over_rest, "plain"),
    (over_rest, "chunked"),
    (over_rest, "gzip"),
    (over_rest, "expect"),
    (over_grpc, "raw"),
    (over_grpc, "contents"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("send", "way"), WAYS)
def test_every_way_gives_the_same_pixels(server, model, send, way):
    images = [files.jpeg(427, 640, seed=1), files.jpeg(21, 20, seed=2, progressive=True)]
    images.append(files.png(16, 16))
    alone = [over_rest(server, "inline", [image], "plain") for image in images]
    assert len(set(alone)) == 3
    assert all(len(one) == 8 * 8 * 3 for one in alone)
    assert send(server, model, images[:2], way) == b"".join(alone[:2])
    assert send(server, model, images, way) == b"".join(alone)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("send", "way"), WAYS)
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (files.jpeg(90, 80)[:-1200], "image 1 of the input 'image' is not a whole JPEG"),
        (files.jpeg(9, 8, "L"), "image 1 of the input 'image' has 1 channels"),
        (b"no image", "image 1 of the input 'image' cannot be read"),
    ],
)
def test_every_way_refuses_the_same(server, model, send, way, bad, words):
    good = files.jpeg(30, 40)
    refused = send(server, model, [good, bad], way)
    assert isinstance(refused, str)
    assert refused.startswith(f"INVALID_ARGUMENT: {words}")
    assert len(send(server, model, [good], way)) == 8 * 8 * 3


@pytest.mark.parametrize("model", MODELS)
def test_bare_bytes_over_grpc_are_one_image(server, model):
    image = files.jpeg(30, 40)
    pixels = np.frombuffer(over_grpc(server, model, [image], "bare"), np.uint8)
    assert pixels.std() > 5
    assert pixels.tobytes() == over_rest(server, model, [image], "plain")
