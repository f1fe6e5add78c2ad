"""The cases K01 to K48, K56 and K57 of cases.md, over REST."""

import gzip
import json
import math
import socket
import struct
import subprocess
import zlib

import cv2
import numpy as np
import orjson
import pytest

from tests.conformance.conformance_models import FIXED_DATATYPES
from tests.support.images import files

ROW = [1.0, 2.0, 3.0, 4.0]
RAW = struct.pack("<4f", *ROW)
X = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
RESULT = {"y": [2.0, 4.0, 6.0, 8.0], "z": [10]}


def x(**fields):
    return {"inputs": [{**X, **fields}]}


def sized(size, **fields):
    return x(parameters={"binary_data_size": size}, **fields)


def flat(data):
    return np.asarray(data).ravel().tolist()


def oracle(file, side=8):
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    resized = cv2.resize(pixels.astype(np.float32), (side, side), interpolation=cv2.INTER_LINEAR)
    return resized.reshape(side, side, -1)


def prefixed(*parts):
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def images(count, size=None, outputs=True):
    entry = {"name": "image", "shape": [count], "datatype": "BYTES"}
    if size is not None:
        entry["parameters"] = {"binary_data_size": size}
    document = {"inputs": [entry]}
    if outputs:
        document["outputs"] = [{"name": "pixels", "parameters": {"binary_data": True}}]
    return document


def pixels_of(answer, count, channels=3):
    assert answer.status == 200, answer.body
    raw = np.frombuffer(answer.outputs["pixels"], "<f4")
    return raw.reshape(count, 8, 8, channels)


def test_k01_server_metadata(rest):
    answer = rest.get("/v2")
    assert answer.status == 200
    assert {"name", "version", "extensions"} <= answer.json.keys()
    assert {"binary_tensor_data", "binary_image_input"} <= set(answer.json["extensions"])


def test_k02_live(rest):
    answer = rest.get("/v2/health/live")
    assert (answer.status, answer.json["live"]) == (200, True)


def test_k03_ready(rest):
    answer = rest.get("/v2/health/ready")
    assert (answer.status, answer.json["ready"]) == (200, True)


def test_k04_model_metadata(rest):
    answer = rest.get("/v2/models/add")
    assert answer.status == 200
    assert answer.json["inputs"][0].items() >= {"name": "x", "datatype": "FP32"}.items()
    assert answer.json["inputs"][0]["shape"] == [-1, 4]
    assert all(type(entry) is int for entry in answer.json["inputs"][0]["shape"])


@pytest.mark.parametrize("path", ["/v2/models/add/", "/v2/"])
def test_k05_trailing_slash(rest, path):
    assert rest.get(path).status == 200


def test_k06_unknown_model_and_version(rest):
    answer = rest.get("/v2/models/nope")
    assert answer.status == 404
    assert "nope" in answer.error
    assert rest.get("/v2/models/add/versions/99").status == 404


def test_k07_model_ready(rest):
    assert rest.get("/v2/models/add/ready").status == 200
    assert rest.get("/v2/models/nope/ready").status != 200


def test_k08_methods_and_routes(rest):
    live = rest.call("POST", "/v2/health/live", b"")
    assert (live.status, "GET" in live.headers["Allow"]) == (405, True)
    infer = rest.get("/v2/models/add/infer")
    assert (infer.status, "POST" in infer.headers["Allow"]) == (405, True)
    assert infer.error
    unknown = rest.get("/v2/zzz")
    assert (unknown.status, bool(unknown.error)) == (404, True)


@pytest.mark.parametrize(
    "data", [ROW, [ROW], [[1.0, 2.0], [3.0, 4.0]]], ids=["flat", "nested", "mixed"]
)
def test_k09_k10_json_data(rest, data):
    answer = rest.infer("add", x(data=data))
    assert answer.status == 200
    assert answer.json["model_name"] == "add"
    assert {name: flat(value) for name, value in answer.outputs.items()} == RESULT


def test_k11_id_is_echoed(rest):
    assert rest.infer("add", {"id": "42", **x(data=ROW)}).json["id"] == "42"
    assert not rest.infer("add", x(data=ROW)).json.get("id")


def test_k12_requested_outputs(rest):
    only = rest.infer("add", {**x(data=ROW), "outputs": [{"name": "y"}]})
    assert list(only.outputs) == ["y"]
    swapped = rest.infer("add", {**x(data=ROW), "outputs": [{"name": "z"}, {"name": "y"}]})
    assert list(swapped.outputs) == ["z", "y"]
    unknown = rest.infer("add", {**x(data=ROW), "outputs": [{"name": "q"}]})
    assert unknown.status == 400
    assert "'q'" in unknown.error
    twice = rest.infer("add", {**x(data=ROW), "outputs": [{"name": "y"}, {"name": "y"}]})
    assert twice.status == 400
    assert "'y'" in twice.error


def test_k13_count_differs_from_shape(rest):
    answer = rest.infer("add", x(data=ROW[:3]))
    assert answer.status == 400
    assert "3" in answer.error
    assert "4" in answer.error


def test_k14_bool(rest):
    entry = {"name": "x", "shape": [1, 4], "datatype": "BOOL"}
    bad = rest.infer("echo_BOOL", {"inputs": [{**entry, "data": [0, 1, 0, 1]}]})
    assert bad.status == 400
    good = rest.infer("echo_BOOL", {"inputs": [{**entry, "data": [True, False, True, True]}]})
    assert flat(good.outputs["y"]) == [True, False, True, True]


@pytest.mark.parametrize(("datatype", "value"), [
    ("UINT8", 256), ("INT8", -129), ("UINT8", -1), ("UINT16", 65536), ("INT16", 32768),
    ("UINT32", 2**32), ("INT32", 2**31), ("UINT64", -1), ("UINT64", 2**64), ("INT64", 2**63),
    ("INT32", 1.5), ("UINT8", True), ("INT64", "1"), ("FP32", "1"), ("FP32", True),
])  # fmt: skip
def test_k15_out_of_range(rest, datatype, value):
    entry = {"name": "x", "shape": [1, 4], "datatype": datatype, "data": [value, 1, 1, 1]}
    answer = rest.infer(f"echo_{datatype}", {"inputs": [entry]})
    assert answer.status == 400
    assert "'x'" in answer.error


@pytest.mark.parametrize(("datatype", "value"), [
    ("INT64", 9007199254740993), ("INT64", -(2**63)), ("INT64", 2**63 - 1), ("UINT64", 2**64 - 1),
])  # fmt: skip
def test_k16_exact_64_bit(rest, datatype, value):
    entry = {"name": "x", "shape": [1, 4], "datatype": datatype}
    numbers = [value, 0, 1, 2]
    as_json = rest.infer(f"echo_{datatype}", {"inputs": [{**entry, "data": numbers}]})
    assert flat_int(as_json.outputs["y"]) == numbers
    raw = np.array(numbers, "<i8" if datatype == "INT64" else "<u8").tobytes()
    document = {
        "inputs": [{**entry, "parameters": {"binary_data_size": 32}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    assert rest.infer(f"echo_{datatype}", document, raw).outputs["y"] == raw


def flat_int(data):
    return data if data and isinstance(data[0], int) else [value for row in data for value in row]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_k17_half_precision(rest, datatype):
    entry = {"name": "x", "shape": [1, 4], "datatype": datatype}
    answer = rest.infer(f"echo_{datatype}", {"inputs": [{**entry, "data": ROW}]})
    assert answer.status == 400
    assert "binary" in answer.error
    raw = bytes(range(1, 9))
    document = {"inputs": [{**entry, "parameters": {"binary_data_size": 8}}]}
    document["parameters"] = {"binary_data_output": True}
    assert rest.infer(f"echo_{datatype}", document, raw).outputs["y"] == raw


def test_k18_nan_and_infinity(rest):
    text = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[NaN,Infinity,-Infinity,1]}]}'
    answer = rest.infer("add", text)
    assert answer.status == 200
    orjson.loads(answer.body)
    values = np.array(flat(answer.outputs["y"]), dtype=np.float32)
    assert math.isnan(values[0])
    assert values[3] == 2.0
    raw = np.array([np.nan, np.inf, -np.inf, 1], "<f4").tobytes()
    document = {**sized(16), "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    binary = np.frombuffer(rest.infer("add", document, raw).outputs["y"], "<f4")
    np.testing.assert_array_equal(binary, [np.nan, np.inf, -np.inf, 2])


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b"{}", b"1", b'"x"', b"{", b'{"inputs":{}}', b'{"inputs":[1]}',
    b'{"inputs":[{}]}', b'{"inputs":[{"name":1}]}', b'{"inputs":null}', b"\xff\xfe", b'{"inputs":[]}',
    b'{"inputs":[{"name":"x","shape":["1",4],"datatype":"FP32","data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","shape":[-1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","shape":[1.0,4],"datatype":"FP32","data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","shape":4,"datatype":"FP32","data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP33","data":[1,2,3,4]}]}',
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,1e400]}]}',
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":{"a":1}}]}',
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":7}]}',
    b'{"inputs":[{"name":"x","shape":[4294967296,4294967296],"datatype":"FP32","data":[1]}]}',
])  # fmt: skip
def test_k19_bad_documents(rest, body):
    answer = rest.infer("add", body)
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize("depth", [65, 101, 250_000])
def test_k19_deep_documents(rest, depth):
    text = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":' + b"[" * depth
    assert rest.infer("add", text + b"]" * depth + b"}]}").status == 400
    assert rest.infer("add", b"[" * depth).status == 400


def test_k20_inputs_that_do_not_fit(rest):
    entry = {**X, "data": ROW}
    twice = rest.infer("add", {"inputs": [entry, entry]})
    unknown = rest.infer("add", {"inputs": [entry, {**entry, "name": "w"}]})
    missing = rest.infer("pair", {"inputs": [{**entry, "name": "a"}]})
    assert [twice.status, unknown.status, missing.status] == [400, 400, 400]
    assert "'x'" in twice.error
    assert "'w'" in unknown.error
    assert "'b'" in missing.error


@pytest.mark.parametrize(
    "name",
    [
        "Inference-Header-Content-Length",
        "inference-header-content-length",
        "InFeReNcE-hEaDeR-cOnTeNt-LeNgTh",
    ],
)
def test_k21_k22_binary_input(rest, name):
    text = json.dumps(sized(16)).encode()
    answer = rest.infer("add", text + RAW, headers={name: str(len(text))})
    assert answer.status == 200
    assert {key: flat(value) for key, value in answer.outputs.items()} == RESULT


def test_k23_binary_without_header(rest):
    text = json.dumps(sized(16)).encode()
    answer = rest.infer("add", text + RAW)
    assert answer.status == 400
    assert "Inference-Header-Content-Length" in answer.error
    assert str(len(text)) in answer.error


@pytest.mark.parametrize(
    "value",
    [
        "100000",
        "-1",
        "abc",
        "12abc",
        "99999999999",
        "",
        "+5",
        "1_0",
        "٣",
        " 5 5",
        "0x10",
        "12,12",
        "9" * 500,
    ],
)
def test_k24_bad_header_length(rest, value):
    answer = rest.infer("add", sized(16), RAW, header=value.encode("utf-8").decode("latin-1"))
    assert answer.status == 400
    assert answer.error


def test_k25_raw_binary_request(rest):
    answer = rest.infer("add", RAW, header=0)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert np.frombuffer(answer.outputs["y"], "<f4").tolist() == RESULT["y"]
    assert np.frombuffer(answer.outputs["z"], "<i8").tolist() == RESULT["z"]
    assert rest.infer("pair", RAW, header=0).status == 400
    assert rest.infer("free", RAW, header=0).status == 400


def test_k26_raw_image(rest):
    assert rest.infer("img", files.jpeg(30, 40), header=0).status == 200


@pytest.mark.parametrize(("size", "status"), [(16, 200), (15, 400), (17, 400)])
def test_k27_size_left_out(rest, size, status):
    answer = rest.infer("add", x(), (RAW + b"?")[:size])
    assert answer.status == status
    if status == 400:
        assert str(size) in answer.error
        assert "16" in answer.error


def test_k28_too_few_bytes(rest):
    answer = rest.infer("add", sized(16), RAW[:12])
    assert answer.status == 400
    assert "4 " in answer.error


def test_k29_json_and_binary_mixed(rest):
    a = {"name": "a", "shape": [1, 4], "datatype": "FP32", "data": [5, 5, 5, 5]}
    b = {"name": "b", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    for inputs in ([a, b], [b, a]):
        answer = rest.infer("pair", {"inputs": inputs}, RAW)
        assert flat(answer.outputs["difference"]) == [4, 3, 2, 1]


def test_k30_two_binary_inputs(rest):
    size = {"parameters": {"binary_data_size": 16}}
    a = {"name": "a", "shape": [1, 4], "datatype": "FP32", **size}
    b = {"name": "b", "shape": [1, 4], "datatype": "FP32", **size}
    five = struct.pack("<4f", 5, 5, 5, 5)
    first = rest.infer("pair", {"inputs": [a, b]}, five, RAW)
    second = rest.infer("pair", {"inputs": [b, a]}, RAW, five)
    assert flat(first.outputs["difference"]) == flat(second.outputs["difference"]) == [4, 3, 2, 1]


@pytest.mark.parametrize("datatype", FIXED_DATATYPES)
@pytest.mark.parametrize("blanks", range(4))
def test_k31_binary_round_trip(rest, datatype, blanks):
    width = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}.get(datatype)
    width = width or int(datatype.lstrip("UINT")) // 8
    rng = np.random.default_rng(blanks)
    top = 2 if datatype == "BOOL" else 256
    raw = rng.integers(0, top, 4 * width, dtype=np.uint8).tobytes()
    document = {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 4],
                "datatype": datatype,
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(document).encode() + b" " * blanks
    answer = rest.infer(f"echo_{datatype}", text, raw)
    assert answer.outputs["y"] == raw


def test_k32_empty_tensor(rest):
    document = sized(0, shape=[0, 4])
    answer = rest.infer("free", document, header=len(json.dumps(document)))
    assert answer.status == 200
    assert flat(answer.outputs["y"]) == []


def test_k33_prefixed_image(rest):
    file = files.jpeg(30, 40)
    answer = rest.infer("pixels", images(1, len(file) + 4), prefixed(file))
    np.testing.assert_array_equal(pixels_of(answer, 1)[0], oracle(file))


def test_k34_bare_image(rest):
    file = files.jpeg(30, 40)
    answer = rest.infer("pixels", images(1, len(file)), file)
    np.testing.assert_array_equal(pixels_of(answer, 1)[0], oracle(file))


FILES = [files.jpeg(30, 40, seed=1), files.png(17, 23, seed=2), files.jpeg(64, 9, seed=3)]
SIZES = ",".join(str(len(file)) for file in FILES)


def test_k35_size_list(rest):
    answer = rest.infer("pixels", images(3, SIZES), *FILES)
    np.testing.assert_array_equal(pixels_of(answer, 3), [oracle(file) for file in FILES])


@pytest.mark.parametrize(("count", "sizes", "status"), [
    (3, SIZES.replace(",", ", "), 200),
    (3, ",".join(str(len(file)) for file in FILES[:2]), 400),
    (3, f"{len(FILES[0]) - 1},{len(FILES[1])},{len(FILES[2])}", 400),
    (3, f"{len(FILES[0])},{len(FILES[1])},{len(FILES[2]) + 1}", 400),
    (3, "", 400), (3, "x", 400), (3, SIZES + ",", 400), (3, "4,,4", 400), (3, "-1,4,4", 400),
    (3, "99999999999999999999,1,1", 400), (3, 1.5, 400), (3, True, 400), (3, -1, 400), (3, None, 400),
    (3, ",".join("1" for _ in range(70_000)), 400),
])  # fmt: skip
def test_k36_size_list_that_does_not_fit(rest, count, sizes, status):
    document = images(count)
    document["inputs"][0]["parameters"] = {"binary_data_size": sizes}
    answer = rest.infer("pixels", document, *FILES)
    assert answer.status == status
    if status == 400:
        assert "'image'" in answer.error or "additional input data" in answer.error


def test_k37_prefixed_images(rest):
    body = prefixed(*FILES)
    answer = rest.infer("pixels", images(3, len(body)), body)
    np.testing.assert_array_equal(pixels_of(answer, 3), [oracle(file) for file in FILES])


def test_k38_bare_images_without_list(rest):
    body = FILES[0] + FILES[1]
    answer = rest.infer("pixels", images(2, len(body)), body)
    assert answer.status == 400
    assert "prefix" in answer.error


@pytest.mark.parametrize("form", [prefixed, bytes], ids=["prefixed", "bare"])
def test_k39_image_without_size(rest, form):
    answer = rest.infer("pixels", images(1), form(FILES[0]))
    np.testing.assert_array_equal(pixels_of(answer, 1)[0], oracle(FILES[0]))


@pytest.mark.parametrize(
    "bad", [FILES[0][:200], b"a text file", b""], ids=["truncated", "text", "empty"]
)
def test_k40_bad_image(rest, bad):
    sizes = f"{len(FILES[0])},{len(bad)}"
    answer = rest.infer("pixels", images(2, sizes), FILES[0], bad)
    assert answer.status == 400
    assert "'image'" in answer.error
    assert "1" in answer.error


def test_k41_channels(rest):
    for file in (files.jpeg(30, 40, "L"), files.rgba_png(30, 40)):
        answer = rest.infer("pixels", images(1, len(file)), file)
        assert answer.status == 400
        assert "channels" in answer.error
    grey = files.jpeg(30, 40, "L")
    answer = rest.infer("grey", images(1, len(grey)), grey)
    np.testing.assert_array_equal(pixels_of(answer, 1, channels=1)[0], oracle(grey))


def test_k42_nchw(rest):
    answer = rest.infer("nchw", images(1, len(FILES[0])), FILES[0])
    assert answer.status == 400
    assert "layout" in answer.error or "NHWC" in answer.error


def test_k43_strings(rest):
    entry = {"name": "x", "shape": [2], "datatype": "BYTES"}
    answer = rest.infer("str", {"inputs": [{**entry, "data": ["a", "é"]}]})
    assert answer.status == 200
    assert answer.outputs["y"] == ["a", "é"]
    assert rest.infer("str", {"inputs": [{**entry, "shape": [1], "data": "abc"}]}).status == 400


def test_k44_all_outputs_binary(rest):
    document = {**sized(16), "parameters": {"binary_data_output": True}}
    answer = rest.infer("add", document, RAW)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    length = int(answer.headers["Inference-Header-Content-Length"])
    json.loads(answer.body[:length])
    assert answer.outputs["y"] == struct.pack("<4f", *RESULT["y"])
    assert answer.outputs["z"] == struct.pack("<q", 10)


def test_k45_binary_by_output(rest):
    def ask(y, z):
        outputs = [
            {"name": "y", "parameters": {"binary_data": y}},
            {"name": "z", "parameters": {"binary_data": z}},
        ]
        return rest.infer("add", {**sized(16), "outputs": outputs}, RAW).outputs

    assert ask(True, False) == {"y": struct.pack("<4f", *RESULT["y"]), "z": [10]}
    assert ask(True, True) == {"y": struct.pack("<4f", *RESULT["y"]), "z": struct.pack("<q", 10)}
    wrong = {**sized(16), "outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}
    assert rest.infer("add", wrong, RAW).status == 400


def test_k46_encodings(rest):
    text = json.dumps(sized(16)).encode()
    length = {"Inference-Header-Content-Length": str(len(text))}

    def send(encoding, body):
        return rest.call(
            "POST", "/v2/models/add/infer", body, {**length, "Content-Encoding": encoding}
        )

    assert flat(send("gzip", gzip.compress(text + RAW)).outputs["y"]) == RESULT["y"]
    assert flat(send("deflate", zlib.compress(text + RAW)).outputs["y"]) == RESULT["y"]
    brotli = send("br", text + RAW)
    assert (brotli.status, "'br'" in brotli.error) == (415, True)
    assert brotli.headers["Accept-Encoding"] == "gzip, deflate"
    assert send("gzip", b"not gzip at all").status == 400
    assert send("gzip", gzip.compress(text + RAW)[:-9]).status == 400
    bomb = send("gzip", gzip.compress(b" " * 50_000_000))
    assert (bomb.status, "--limits-inflate-ratio" in bomb.error) == (413, True)


def chunks(body, size):
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("binary", [True, False])
def test_k47_chunked(server, binary):
    text = json.dumps(sized(16) if binary else x(data=ROW)).encode()
    head = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    if binary:
        head += b"Inference-Header-Content-Length: %d\r\n" % len(text)
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(head + b"\r\n" + chunks(text + (RAW if binary else b""), 7))
        received = b"".join(iter(lambda: peer.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1


def test_k47_expect_continue(server, tmp_path):
    values = np.zeros((1, 1_250_000), "<f4")
    document = {
        "inputs": [
            {"name": "x", "shape": [1, 1_250_000], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
        ],
        "parameters": {"binary_data_output": True},
    }  # fmt: skip
    text = json.dumps(document).encode()
    (tmp_path / "body").write_bytes(text + values.tobytes())
    done = subprocess.run(
        ["curl", "-sS", "-H", "Expect: 100-continue", "-H", f"Inference-Header-Content-Length: {len(text)}",
         "--data-binary", f"@{tmp_path / 'body'}", "-o", str(tmp_path / "answer"), "-w", "%{http_code}",
         f"{server.url}/v2/models/free/infer"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "200"
    assert (tmp_path / "answer").read_bytes().endswith(values.tobytes())


def test_k48_parameters(rest):
    sent = {"text": "a", "whole": 7, "real": 1.5, "yes": True, "sequence_id": 9}
    answer = rest.infer("parameters", {**x(data=ROW), "parameters": sent})
    assert answer.status == 200, answer.body
    seen = json.loads(next(iter(answer.outputs.values()))[0])
    assert {name: seen[name] for name in ("text", "whole", "real", "yes")} == {
        name: sent[name] for name in ("text", "whole", "real", "yes")
    }

    def status(**parameters):
        return rest.infer("parameters", {**x(data=ROW), "parameters": parameters}).status

    assert status(nested={"a": 1}) == 400
    assert status(sequence_id="abc") == 200
    assert status(triton_x=1) == 400


def test_k56_what_perf_analyzer_needs(rest):
    extensions = rest.get("/v2").json["extensions"]
    config = rest.get("/v2/models/add/config")
    assert config.status == 200
    assert {"max_batch_size", "input", "output"} <= config.json.keys()
    assert config.json["input"][0]["data_type"] == "TYPE_FP32"
    statistics = rest.get("/v2/models/add/stats")
    assert (statistics.status == 200) == ("statistics" in extensions)


def test_k57_repository(rest):
    for body in (b"{}", b""):
        index = rest.call("POST", "/v2/repository/index", body)
        assert index.status == 200
        assert "add" in [entry["name"] for entry in index.json]
    assert rest.call("POST", "/v2/repository/index", b'{"ready":"x"}').status == 400
    assert rest.call("POST", "/v2/repository/models/str/unload", b"").status == 200
    assert rest.get("/v2/models/str/ready").status != 200
    assert rest.call("POST", "/v2/repository/models/str/load", b"{}").status == 200
    assert rest.get("/v2/models/str/ready").status == 200
