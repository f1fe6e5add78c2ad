"""Real photographs reach the handler bit for bit alike, whichever way they were sent."""

import json
import struct
import textwrap

import cv2
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from ksrv.testing import Server
from tests.support.images.oracle import opencv_arithmetic

HANDLER = """
from ksrv import BaseHandler


class Pixels(BaseHandler):
    def inference(self, image):
        return {"pixels": image}
"""
SIDES = (224, 200)


def model_yaml(channels):
    shape = [-1, *SIDES, channels]
    return textwrap.dedent(f"""
        handler: handler.py
        inputs:
          - {{name: image, datatype: FP32, shape: {shape}}}
        outputs:
          - {{name: pixels, datatype: FP32, shape: {shape}}}
    """)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    for name, channels in (("colour", 3), ("grey", 1)):
        (root / name).mkdir()
        (root / name / "handler.py").write_text(HANDLER)
        (root / name / "model.yaml").write_text(model_yaml(channels))
    with Server(root, start_timeout=200) as running:
        yield running


@pytest.fixture(scope="module")
def files():
    from sklearn.datasets import load_sample_images

    china, flower = (
        cv2.cvtColor(image, cv2.COLOR_RGB2BGR) for image in load_sample_images().images
    )
    return {
        "colour": [
            cv2.imencode(".jpg", china)[1].tobytes(),
            cv2.imencode(".jpg", flower, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes(),
            cv2.imencode(".png", china[100:300, 50:400])[1].tobytes(),
        ],
        "grey": [cv2.imencode(".png", cv2.cvtColor(flower, cv2.COLOR_BGR2GRAY))[1].tobytes()],
    }


def oracle(file):
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED).astype(np.float32)
    with opencv_arithmetic():
        resized = cv2.resize(pixels, SIDES[::-1], interpolation=cv2.INTER_LINEAR)
    return resized.reshape(*SIDES, -1)


def prefixed(files):
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


def over_rest(server, model, files, size, block):
    document = {
        "inputs": [
            {
                "name": "image",
                "shape": [len(files)],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": size},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    answer = requests.post(
        f"{server.url}/v2/models/{model}/infer",
        data=header + block,
        headers={"Inference-Header-Content-Length": str(len(header))},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    return answer.content[int(answer.headers["Inference-Header-Content-Length"]) :]


def over_grpc(server, model, files, **contents):
    request = service_pb2.ModelInferRequest(model_name=model)
    image = request.inputs.add(name="image", datatype="BYTES", shape=[len(files)])
    if "bytes_contents" in contents:
        image.contents.bytes_contents.extend(contents["bytes_contents"])
    request.raw_input_contents.extend(contents.get("raw", []))
    with triton.InferenceServerClient(server.grpc) as client:
        return client._client_stub.ModelInfer(request).raw_output_contents[0]


@pytest.mark.parametrize("model", ["colour", "grey"])
def test_every_way_gives_the_oracles_bits(server, files, model):
    sent = files[model]
    expected = np.stack([oracle(file) for file in sent]).tobytes()
    sizes = ",".join(str(len(file)) for file in sent)
    block = prefixed(sent)
    assert over_rest(server, model, sent, sizes, b"".join(sent)) == expected
    assert over_rest(server, model, sent, len(block), block) == expected
    assert over_grpc(server, model, sent, bytes_contents=sent) == expected
    assert over_grpc(server, model, sent, raw=[block]) == expected
