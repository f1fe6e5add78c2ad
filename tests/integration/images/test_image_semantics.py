"""Encoded images through a real server: OVMS's meaning and every key of `image:`, against the oracle.

One model for each combination answers its input as the handler saw it. Over REST the images go as
prefixed elements, as bare files with a list of sizes, and one by one; over gRPC in bytes_contents.
"""

import json
import struct

import grpc
import numpy as np
import pytest
import requests
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ksrv.model.spec import ImageSpec
from ksrv.testing import Server
from tests.support.images import files, oracle
from tests.support.models import write_model
from tests.support.wire import v2_wire as wire

PIXELS = 'def inference(image): return {"pixels": image}\n'
BESIDE_ROWS = """
import numpy as np


def inference(x, image):
    return {"pixels": np.tile(image.ravel(), (len(x), 1))}
"""
HEADER = "Inference-Header-Content-Length"
NORMAL = {"scale": 255.0, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SOURCES = {
    "jpeg": files.jpeg(60, 90, seed=1),
    "tall": files.jpeg(97, 41, seed=2),
    "progressive": files.jpeg(64, 64, seed=3, progressive=True),
    "png": files.png(33, 57, seed=5),
    "palette": files.png(40, 40, "P", seed=6),
    "16 bits": files.png16(48, 40, 3, seed=8),
    "small": files.png(5, 7, seed=9),
    "turned": files.oriented(44, 66, 6),
}
CONVERTED = {
    "grey": files.jpeg(50, 70, "L", seed=4),
    "alpha": files.rgba_png(45, 52, seed=7),
    "mirrored": files.oriented(30, 50, 5, "PNG"),
}

COMBINED = [
    {"resize": resize, "color": color, "exif": exif, "channels": "convert", "arithmetic": arithmetic,
     "model_layout": layout, **NORMAL}
    for resize, color, exif, arithmetic, layout in (
        ("linear", "RGB", "ignore", "fast", "NHWC"),
        ("linear", "BGR", "apply", "exact", "NCHW"),
        ("area", "RGB", "apply", "fast", "NCHW"),
        ("area", "BGR", "ignore", "exact", "NHWC"),
        ("pillow", "RGB", "apply", "exact", "NCHW"),
        ("pillow", "BGR", "ignore", "fast", "NHWC"),
        ("letterbox", "RGB", "apply", "fast", "NHWC"),
        ("letterbox", "BGR", "ignore", "exact", "NCHW"),
    )
]  # fmt: skip
ALONE = [
    {},
    {"color": "RGB"},
    {"channels": "convert"},
    {"exif": "apply"},
    {"resize": "area"},
    {"resize": "pillow", "channels": "convert"},
    {"resize": "letterbox"},
    {"resize": "pillow", "shorter_side": 40, "channels": "convert"},
    {"shorter_side": 36},
    {"scale": 2.0},
    {"mean": [1.5]},
    {"std": [2.0, 3.0, 4.0]},
    {"arithmetic": "exact", "scale": 255.0},
    {"model_layout": "NCHW"},
]
CASES = {
    **{f"alone{number}": ("FP32", (30, 36, 3), keys) for number, keys in enumerate(ALONE)},
    **{f"combined{number}": ("FP32", (32, 48, 3), keys) for number, keys in enumerate(COMBINED)},
    **{f"plain_{kind}": (kind, (23, 31, 3), {}) for kind in oracle.NUMPY},
    **{
        f"converted_{kind}": (kind, (23, 31, 3), {"channels": "convert", "resize": "area"})
        for kind in oracle.NUMPY
    },
    "grey": ("UINT8", (20, 30, 1), {"color": "GRAY", "channels": "convert"}),
    "grey_pillow": (
        "FP32",
        (20, 30, 1),
        {"color": "GRAY", "channels": "convert", "resize": "pillow", "scale": 255.0},
    ),
}

IN_A_PROCESS = ("alone0", "combined1")
SHAPED = {
    "free": "[-1, -1, -1, 3]",
    "ranged": "[-1, '100:200', '100:200', 3]",
    "half_free": "[-1, 40, -1, 3]",
    "static_batch": "[2, 8, 8, 3]",
    "eight": "[-1, 8, 8, 3]",
}


def yaml_of(kind, shape, keys):
    section = f", image: {json.dumps(keys)}" if keys else ""
    return f"inputs: [{{name: image, datatype: {kind}, shape: {shape}{section}}}]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for name, (kind, shape, keys) in CASES.items():
        executor = "executor: process\n" if name in IN_A_PROCESS else ""
        write_model(root, name, PIXELS, yaml_of(kind, json.dumps([-1, *shape]), keys) + executor)
    for name, shape in SHAPED.items():
        write_model(root, name, PIXELS, yaml_of("FP32", shape, {}))
    any_channels = yaml_of("FP32", "[-1, 20, 20, -1]", {"channels": "strict"})
    write_model(root, "any_channels", PIXELS, any_channels)
    write_model(root, "exact_size", PIXELS, yaml_of("FP32", "[-1, 8, 8, 3]", {"resize": "none"}))
    write_model(root, "int64", PIXELS, yaml_of("INT64", "[-1, 8, 8, 3]", {}))
    write_model(root, "gif", PIXELS, yaml_of("UINT8", "[-1, 8, 8, 3]", {"formats": ["gif"]}))
    for count in (1, 3):
        rows = "inputs: [{name: x, datatype: FP32, shape: [-1, 1]}, "
        entry = f"{{name: image, datatype: FP32, shape: [{count}, 8, 8, 3], image: {{}}}}]\n"
        write_model(root, f"fixed{count}", BESIDE_ROWS, rows + entry)
    batching = "batching: {max_batch_size: 4, max_delay_ms: 20}\n"
    write_model(root, "batched", PIXELS, yaml_of("FP32", "[-1, 8, 8, 3]", {}) + batching)
    with Server(root, start_timeout=120) as running:
        yield running


@pytest.fixture(scope="module")
def session():
    with requests.Session() as made:
        yield made


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def post(session, server, model, elements, form="sized", shape=None):
    tensor = wire.Plain("image", "BYTES", tuple(shape or (len(elements),)), list(elements))
    entry, block = wire.rest_input(tensor, form)
    head = wire.document([entry], parameters={"binary_data_output": True})
    return session.post(
        f"{server.url}/v2/models/{model}/infer",
        data=head + block,
        headers={HEADER: str(len(head))},
        timeout=60,
    )


DTYPES = {name: np.dtype(kind) for name, kind in oracle.NUMPY.items()}


def pixels(response):
    assert response.status_code == 200, response.text
    length = int(response.headers[HEADER])
    (output,) = json.loads(response.content[:length])["outputs"]
    array = np.frombuffer(response.content[length:], DTYPES[output["datatype"]])
    return array.reshape(output["shape"])


def refused(response, *words):
    assert response.status_code == 400, response.text
    text = response.json()["error"]
    for word in ("'image'", *words):
        assert word in text, text


def wanted(elements, shape, kind, keys):
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    rows = [oracle.prepare(data, ImageSpec(**given), shape, kind) for data in elements]
    stacked = np.stack(rows)
    return stacked.transpose(0, 3, 1, 2) if keys.get("model_layout") == "NCHW" else stacked


@pytest.mark.parametrize("name", CASES)
def test_keys_alone_and_combined(server, session, stub, name):
    kind, shape, keys = CASES[name]
    sources = dict(SOURCES)
    if keys.get("channels") == "convert":
        sources |= CONVERTED
    if keys.get("resize") == "pillow" and kind == "UINT16":
        del sources["16 bits"]
    elements = list(sources.values())
    expected = wanted(elements, shape, kind, keys)
    prefixed = pixels(post(session, server, name, elements))
    np.testing.assert_array_equal(prefixed, expected, strict=True)
    bare = pixels(post(session, server, name, elements, "listed"))
    np.testing.assert_array_equal(bare, expected)
    request = service_pb2.ModelInferRequest(model_name=name)
    entry = request.inputs.add(name="image", datatype="BYTES", shape=[len(elements)])
    entry.contents.bytes_contents.extend(elements)
    raw = stub.ModelInfer(request).raw_output_contents[0]
    assert raw == expected.tobytes()


@pytest.mark.parametrize(
    ("model", "first", "target"),
    [
        ("free", (50, 60), (50, 60)),
        ("ranged", (90, 220), (100, 200)),
        ("ranged", (150, 120), (150, 120)),
        ("half_free", (40, 60), (40, 60)),
        ("half_free", (20, 61), (40, 122)),
    ],
)
def test_open_sizes_are_the_first_images(server, session, model, first, target):
    elements = [files.png(*first), files.jpeg(*first, seed=1)]
    got = pixels(post(session, server, model, elements))
    np.testing.assert_array_equal(got, wanted(elements, (*target, 3), "FP32", {}), strict=True)


def test_a_range_resizes_the_others_to_the_first(server, session):
    elements = [files.png(130, 140), files.jpeg(10, 300, seed=1)]
    got = pixels(post(session, server, "ranged", elements))
    np.testing.assert_array_equal(got, wanted(elements, (130, 140, 3), "FP32", {}), strict=True)


def test_images_of_an_open_size_must_agree(server, session):
    both = [files.png(30, 40), files.png(30, 41)]
    refused(post(session, server, "free", both), "image 1", "41x30", "40x30")
    refused(post(session, server, "half_free", both), "image 1", "54x40", "53x40", "letterbox")
    refused(post(session, server, "exact_size", both[:1]), "image 0", "40x30", "8x8")
    assert pixels(post(session, server, "exact_size", [files.png(8, 8)])).shape == (1, 8, 8, 3)


def test_channels_are_the_first_images_or_the_models(server, session):
    grey, alpha, color = files.png(9, 9, "L"), files.rgba_png(9, 9), files.png(9, 9)
    for data, channels in ((grey, 1), (alpha, 4), (color, 3)):
        got = pixels(post(session, server, "any_channels", [data]))
        np.testing.assert_array_equal(got, wanted([data], (20, 20, channels), "FP32", {}))
    refused(post(session, server, "any_channels", [grey, color]), "image 1", "3 channels", "1")
    refused(post(session, server, "eight", [color, alpha]), "image 1", "4 channels", "3")
    refused(post(session, server, "eight", [grey]), "1 channels")


def test_counts_and_shapes(server, session):
    file = files.png(9, 9)
    one = pixels(post(session, server, "eight", [file]))
    column = pixels(post(session, server, "eight", [file, file], shape=(2, 1)))
    np.testing.assert_array_equal(column, np.concatenate([one, one]))
    refused(post(session, server, "eight", [file, file], shape=(1, 2)), "[1, 2]")
    refused(post(session, server, "eight", [file], shape=(1, 1, 1, 1)), "[1, 1, 1, 1]")
    assert pixels(post(session, server, "static_batch", [file, file])).shape == (2, 8, 8, 3)
    refused(post(session, server, "static_batch", [file]), "1 images", "2")
    refused(post(session, server, "eight", []), "no image")
    too_many = post(session, server, "batched", [file] * 5)
    assert too_many.status_code == 400
    assert "5" in too_many.json()["error"] and "4" in too_many.json()["error"]


def test_a_datatype_without_images_and_other_formats(server, session):
    file = files.png(8, 8)
    assert post(session, server, "int64", [file]).status_code == 400
    gif = files.encode(files.picture(8, 8, "P"), "GIF")
    refused(post(session, server, "eight", [gif]), "gif", "jpeg")
    assert pixels(post(session, server, "gif", [gif])).shape == (1, 8, 8, 3)
    refused(post(session, server, "gif", [file]), "png")


def test_raw_tensors_pass_untouched_beside_images(server, session):
    values = np.linspace(-1, 300, 2 * 8 * 8 * 3).astype("<f4").reshape(2, 8, 8, 3)
    tensor = wire.Plain("image", "FP32", (2, 8, 8, 3), values.ravel().tolist())
    entry, block = wire.rest_input(tensor, "sized")
    head = wire.document([entry], parameters={"binary_data_output": True})
    for model in ("eight", "batched"):
        answer = session.post(
            f"{server.url}/v2/models/{model}/infer",
            data=head + block,
            headers={HEADER: str(len(head))},
            timeout=60,
        )
        np.testing.assert_array_equal(pixels(answer), values)


def test_bad_image_fails_only_its_request_of_a_batch(server, stub):
    def request(file):
        made = service_pb2.ModelInferRequest(model_name="batched")
        entry = made.inputs.add(name="image", datatype="BYTES", shape=[1])
        entry.contents.bytes_contents.append(file)
        return stub.ModelInfer.future(made)

    good, bad = files.jpeg(9, 12), files.jpeg(9, 12)[:150]
    pending = [request(file) for file in (good, bad, good, bad)]
    expected = wanted([good], (8, 8, 3), "FP32", {}).tobytes()
    for number, call in enumerate(pending):
        if number % 2:
            assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "'image'" in call.details()
        else:
            assert call.result().raw_output_contents[0] == expected


@pytest.mark.parametrize("count", [1, 3])
def test_an_input_with_a_fixed_number_of_images_has_that_many(server, session, count):
    """Beside an input whose rows are another number; what the block held before is nobody's to see."""
    file = SOURCES["png"]
    elements = (struct.pack("<I", len(file)) + file) * count
    for rows in (1, 2, 5):
        entries = [
            {"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": [[0.0]] * rows},
            {"name": "image", "datatype": "BYTES", "shape": [count],
             "parameters": {"binary_data_size": len(elements)}},
        ]  # fmt: skip
        head = json.dumps({"inputs": entries}).encode()
        answer = session.post(
            f"{server.url}/v2/models/fixed{count}/infer",
            data=head + elements,
            headers={HEADER: str(len(head))},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        [output] = answer.json()["outputs"]
        expected = wanted([file] * count, (8, 8, 3), "FP32", {})
        assert output["shape"] == [rows, expected.size]
        found = np.array(output["data"], np.float32).reshape(rows, -1)
        assert np.array_equal(found, np.tile(expected.ravel(), (rows, 1)))


def test_metadata_describes_image_inputs(server, session):
    told = session.get(f"{server.url}/v2/models/combined4", timeout=10).json()
    assert told["inputs"][0]["shape"] == [-1, 32, 48, 3]
    properties = told["properties"]
    assert "BYTES" in properties["image.image.accepts"]
    expected = {"color": "RGB", "resize": "pillow", "exif": "apply", "size": "32x48"}
    for key, value in expected.items():
        assert properties[f"image.image.{key}"] == value
    ranged = session.get(f"{server.url}/v2/models/ranged", timeout=10).json()
    assert ranged["inputs"][0]["shape"] == [-1, -1, -1, 3]
    assert ranged["properties"]["image.image.size"] == "100:200x100:200"
    plain = session.get(f"{server.url}/v2/models/int64", timeout=10).json()
    assert "properties" not in plain
