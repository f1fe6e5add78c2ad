"""Images as requests carry them without a v2 header: bodies, forms, base64 and data URLs."""

import base64
import json
import subprocess

import numpy as np
import pytest
import requests

from ksrv.testing import Server
from tests.support.images import files
from tests.support.models import MEAN, write_mean, write_model, write_text

PAIR = """
def inference(left, right):
    return {"mean": left.mean(axis=(1, 2)) - right.mean(axis=(1, 2))}
"""
TWO_IMAGES = """
inputs:
  - {name: left, datatype: FP32, shape: [-1, 8, 8, 3]}
  - {name: right, datatype: FP32, shape: [-1, 8, 8, 3]}
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]
"""
ANY = """
import numpy as np


def handle(batch, context):
    return {"sizes": np.array([len(value) for value in batch["photo"]])}
"""
PLANES = """
inputs: [{name: x, datatype: FP32, shape: [-1, 3, 8, 8]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 3, 8, 8]}]
"""
FORM = "multipart/form-data; boundary=b"
CRLF = "expected CRLF before and after"
PART = b'--b\r\nContent-Disposition: form-data; name="image"'
URLENCODED = "application/x-www-form-urlencoded"
CAT, DOG = files.jpeg(60, 90, seed=1), files.png(33, 57, seed=5)


def write_all(root):
    write_mean(root)
    write_model(root, "pair", PAIR, TWO_IMAGES)
    write_model(root, "any", ANY, "")
    write_model(root, "planes", MEAN.replace("image", "x").replace("mean", "y"), PLANES)
    write_text(root)


class Client:
    """A session with one server."""

    def __init__(self, server, session):
        self.server = server
        self.session = session

    def post(self, model, data=None, query="", **keywords):
        url = f"{self.server.url}/v2/models/{model}/infer{query}"
        return self.session.post(url, data=data, timeout=60, **keywords)

    def v2(self, model, *images, name="image"):
        """The answer to the same images in the v2 binary dialect."""
        sizes = ",".join(str(len(image)) for image in images)
        entry = {
            "name": name,
            "shape": [len(images)],
            "datatype": "BYTES",
            "parameters": {"binary_data_size": sizes},
        }
        header = json.dumps({"inputs": [entry]}).encode()
        fields = {"Inference-Header-Content-Length": str(len(header))}
        return outputs(self.post(model, header + b"".join(images), headers=fields))


def outputs(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()["outputs"]


def error(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uploads")
    models = folder / "models"
    models.mkdir()
    write_all(models)
    with Server(models) as server, requests.Session() as session:
        yield Client(server, session)


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (CAT, "image/jpeg"),
        (CAT, "IMAGE/JPEG; q=1"),
        (DOG, "image/png"),
        (CAT, "image/webp"),  # the bytes decide, as in a form
        (CAT, None),
        (CAT, URLENCODED),  # curl's default
        (CAT, "application/octet-stream"),
    ],
)
def test_an_image_is_a_body(client, image, kind):
    headers = {"Content-Type": kind} if kind else {}
    assert outputs(client.post("mean", image, headers=headers)) == client.v2("mean", image)


def test_a_chunked_image_is_the_same(client):
    pieces = (CAT[start : start + 1000] for start in range(0, len(CAT), 1000))
    answer = client.post("mean", pieces, headers={"Content-Type": "image/jpeg"})
    assert outputs(answer) == client.v2("mean", CAT)


def test_the_path_names_the_input(client):
    headers = {"Content-Type": "image/jpeg"}
    assert outputs(client.post("mean", CAT, "?input=image", headers=headers)) == client.v2(
        "mean", CAT
    )
    assert "unknown input 'photo'" in error(
        client.post("mean", CAT, "?input=photo", headers=headers)
    )
    assert "may name one" in error(
        client.post("mean", CAT, "?input=image&input=b", headers=headers)
    )
    assert "needs ?input=NAME" in error(client.post("pair", CAT, headers=headers))
    assert "'right' is missing" in error(client.post("pair", CAT, "?input=left", headers=headers))
    assert "add ?input=NAME" in error(client.post("any", CAT, headers=headers))
    (sizes,) = outputs(client.post("any", CAT, "?input=photo", headers=headers))
    assert sizes["data"] == [len(CAT)]


def test_text_models_take_any_image(client):
    answer = client.post("text", b"not UTF-8 \xff", headers={"Content-Type": "image/x-own"})
    assert outputs(answer)[0]["data"] == [{"b64": base64.b64encode(b"not UTF-8 \xff").decode()}]
    answer = client.post("text", b"as it came", headers={"Content-Type": "image/x-own"})
    assert outputs(answer)[0]["data"] == ["as it came"]


@pytest.mark.parametrize("name", ["image", "file", "data"])
def test_the_files_of_a_form_are_a_batch(client, name):
    sent = [(name, ("a.jpg", CAT)), (name, ("b.png", DOG)), (name, ("c.jpg", CAT))]
    assert outputs(client.post("mean", files=sent)) == client.v2("mean", CAT, DOG, CAT)


def test_files_of_different_names_are_a_batch_for_the_only_input(client):
    sent = {"first": CAT, "second": DOG}
    assert outputs(client.post("mean", files=sent)) == client.v2("mean", CAT, DOG)


def test_the_parts_of_a_form_are_inputs(client):
    sent = {"right": CAT, "left": DOG}
    (found,) = outputs(client.post("pair", files=sent))
    left, right = client.v2("mean", DOG)[0]["data"], client.v2("mean", CAT)[0]["data"]
    np.testing.assert_allclose(found["data"], np.subtract(left, right), rtol=1e-4)
    assert "unknown input 'middle'" in error(client.post("pair", files={**sent, "middle": CAT}))
    assert "'right' is missing" in error(client.post("pair", files={"left": CAT}))
    uneven = [("left", CAT), ("right", CAT), ("right", DOG)]
    assert "2 rows" in error(client.post("pair", files=uneven))


def test_fields_of_a_form_are_texts(client):
    sent = [("x", (None, "héllo")), ("x", (None, "")), ("x", ("name.txt", "file"))]
    assert outputs(client.post("text", files=sent))[0]["data"] == ["héllo", "", "file"]


def test_a_json_part_is_the_rest_of_the_request(client):
    rest = {"id": "7", "inputs": [], "outputs": [{"name": "mean"}]}
    part = (None, json.dumps(rest), "application/json")
    answer = client.post("mean", files=[("request", part), ("image", ("a.jpg", CAT))])
    assert answer.json()["id"] == "7"
    assert outputs(answer) == client.v2("mean", CAT)
    twice = [("request", part), ("request", part), ("image", ("a.jpg", CAT))]
    assert "two parts" in error(client.post("mean", files=twice))
    broken = (None, '{"inputs": [', "application/json")
    assert "JSON" in error(client.post("mean", files=[("request", broken), ("image", CAT)]))
    text = base64.b64encode(DOG).decode()
    given = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}]}
    part = (None, json.dumps(given), "application/json")
    both = [("request", part), ("image", ("a.jpg", CAT))]
    assert "given twice" in error(client.post("mean", files=both))


@pytest.mark.parametrize(
    "accept", ["application/octet-stream", "Application/Octet-Stream;q=1, x/y"]
)
def test_a_client_may_ask_for_a_binary_answer(client, accept):
    headers = {"Content-Type": "image/jpeg", "Accept": accept}
    answer = client.post("mean", CAT, headers=headers)
    start = int(answer.headers["Inference-Header-Content-Length"])
    values = np.frombuffer(answer.content[start:], np.float32)
    np.testing.assert_array_equal(values, np.float32(client.v2("mean", CAT)[0]["data"]))


def test_a_raw_request_may_ask_for_a_json_answer(client):
    headers = {"Inference-Header-Content-Length": "0"}
    binary = client.post("mean", CAT, headers={**headers, "Accept": "application/json, */*"})
    assert binary.headers["Content-Type"] == "application/octet-stream"
    answer = client.post("mean", CAT, headers={**headers, "Accept": "application/json"})
    assert outputs(answer) == client.v2("mean", CAT)


def forms(image):
    text = base64.b64encode(image).decode()
    url = f"data:image/jpeg;base64,{text}"
    return [text, url, url.replace("data:", "DATA:"), {"b64": text}, {"b64": url}]


@pytest.mark.parametrize("content_type", [None, "base64"])
@pytest.mark.parametrize("form", range(5))
def test_json_carries_images(client, content_type, form):
    data = [forms(CAT)[form], forms(DOG)[form]]
    entry = {"name": "image", "shape": [2], "datatype": "BYTES", "data": data}
    if content_type:
        entry["parameters"] = {"content_type": content_type}
    assert outputs(client.post("mean", json={"inputs": [entry]})) == client.v2("mean", CAT, DOG)


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("data:image/png,abc", "data:TYPE;base64,TEXT"),
        ("data:;base64", "data:TYPE;base64,TEXT"),
        ("data:" + "x" * 300 + ";base64,aaaa", "data:TYPE;base64,TEXT"),
        ("data:;base64,a", "not a multiple of 4"),
        ("", "the file is empty"),
        ({"b64": 3}, "is not a string"),
        ({"b64": "a"}, "not a multiple of 4"),
        ({"b64": "aaaa", "more": 1}, "is not a string"),
        ({}, "is not a string"),
        (None, "is not a string"),
        ({"b64": {"b64": "aaaa"}}, "is not a string"),
        ("aaa", "with its padding (=)"),
        ("aaaa\n", "is '\\n'; leave out line ends and blanks"),
        ("aa-a", "character 2 is '-'; this is base64url"),
        ("aa\xe9a", "character 2 is '\\xe9'; expected the bytes"),
        ("https://host/picture.jpg", "ksrv fetches no URLs"),
        (base64.b64encode(b"no image").decode(), "no known image format"),
    ],
)
def test_invalid_json_images_are_refused(client, element, text):
    entry = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [element]}
    assert text in error(client.post("mean", json={"inputs": [entry]}))


def test_texts_stay_as_they_are_unless_they_say_otherwise(client):
    data = ["data:;base64,aGk=", {"b64": "aGk="}, "aGk="]
    entry = {"name": "x", "shape": [3], "datatype": "BYTES", "data": data}
    (found,) = outputs(client.post("text", json={"inputs": [entry]}))
    assert found["data"] == ["data:;base64,aGk=", "hi", "aGk="]


def test_numbers_are_no_objects(client):
    entry = {"name": "x", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [{"b64": "aaaa"}]}
    assert "value 0 of 'data' is an object" in error(
        client.post("planes", json={"inputs": [entry]})
    )


def two_pictures(first=b"\r\n", before=b"\r\n", after=b"\r\n", more=b""):
    """Return a form of two pictures with other line ends around its boundaries."""
    head = b'Content-Disposition: form-data; name="image"; filename="a.jpg"\r\n' + more + b"\r\n"
    return b"--b" + first + head + CAT + before + b"--b" + after + head + DOG + b"\r\n--b--\r\n"


def test_model_without_image_input_names_the_remedy(client):
    refused = error(client.post("planes", CAT, headers={"Content-Type": "image/jpeg"}))
    assert "handler: image_classifier" in refused and "model_layout: NCHW" in refused


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "image/jpeg", "the body is empty"),
        (b"no image", "image/jpeg", "no known image format"),
        (CAT[:300], "image/jpeg", "cannot be"),
        (b"x", "multipart/mixed; boundary=b", "multipart/form-data"),
        (b"--b--\r\n", "multipart/form-data", "needs a boundary"),
        (b"--b--\r\n", "multipart/form-data; boundary=" + "b" * 71, "needs a boundary"),
        (b"--b--\r\n", FORM, "has no parts"),
        (b"--b\r\n\r\nx\r\n--b--\r\n", FORM, "has no name"),
        (PART + b"\r\n\r\n" + CAT, FORM, "without its closing boundary; it ends with --BOUNDARY--"),
        (
            PART + b"; " + b"x" * 9000,
            FORM,
            "no head that ends within 8192 bytes; expected header fields and an empty line",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="' + b";" * 500 + b"\r\n\r\n",
            FORM,
            "is malformed at character",
        ),
        (b"--b--\r\n", 'multipart/form-data; boundary="' + ";" * 5000, "is malformed at"),
        (
            PART + b"\r\n\r\ncat.jpg\r\n--b--\r\n",
            FORM,
            "'image' is a text and no file",
        ),  # curl -F image=cat.jpg
        (two_pictures(first=b"\n"), FORM, CRLF),
        (two_pictures(before=b"\n"), FORM, CRLF),
        (two_pictures(after=b"\n"), FORM, CRLF),
        (
            two_pictures(more=b"Content-Type:\r\nContent-Type: image/jpeg\r\n"),
            FORM,
            "each name once",
        ),
        (
            two_pictures(more=b"Content-Transfer-Encoding: base64\r\n"),
            FORM,
            "has the Content-Transfer-Encoding 'base64'; send the bytes as they are",
        ),
        (CAT.translate(None, b"\r\n\0"), URLENCODED, "bytes of the picture are missing"),  # curl -d
        (DOG.translate(None, b"\r\n\0"), URLENCODED, "bytes of the picture are missing"),
    ],
)
def test_malformed_uploads_are_refused(client, body, kind, text):
    assert text in error(client.post("mean", body, headers={"Content-Type": kind}))


def test_many_parts_are_refused(client):
    many = [("image", ("a.jpg", b"")) for _ in range(1025)]
    assert "more than 1024 parts" in error(client.post("mean", files=many))
    several = [(f"n{place}", ("a", b"x")) for place in range(257)]
    assert "exceeds the limit --limits-inputs (256 inputs)" in error(
        client.post("any", files=several)
    )


def test_curl_as_people_write_it(client, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(CAT)
    (tmp_path / "dog.png").write_bytes(DOG)
    url = f"{client.server.url}/v2/models/mean/infer"
    for arguments, images in [
        (["--data-binary", "@cat.jpg", "-H", "Content-Type: image/jpeg"], [CAT]),
        (["--data-binary", "@cat.jpg"], [CAT]),
        (["-T", "cat.jpg", "-X", "POST"], [CAT]),
        (["-F", "image=@cat.jpg", "-F", "image=@dog.png"], [CAT, DOG]),
    ]:
        command = ["curl", "-sS", "--max-time", "30", *arguments, url]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["outputs"] == client.v2("mean", *images)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = write_mean(tmp_path_factory.mktemp("small")).parent
    with Server(root, limits={"body": 300_000, "json": 2_000}) as server:
        yield server


def test_images_have_the_limit_of_bodies_and_json_its_own(small):
    url = f"{small.url}/v2/models/mean/infer"
    image = files.png(100, 100, seed=3)
    assert 2_000 < len(image) < 300_000
    kind = {"Content-Type": "image/png"}
    for body in (image, iter([image])):
        assert requests.post(url, data=body, headers=kind, timeout=30).status_code == 200
    assert requests.post(url, files={"image": image}, timeout=30).status_code == 200
    for body in (bytes(300_001), iter([bytes(200_000), bytes(200_000)])):
        answer = requests.post(url, data=body, headers=kind, timeout=30)
        assert (answer.status_code, "--limits-body" in answer.text) == (413, True)
    text = json.dumps({"inputs": [], "id": "x" * 2_000})
    form = {"request": (None, text, "application/json"), "image": ("a", image)}
    answer = requests.post(url, files=form, timeout=30)
    assert (answer.status_code, "--limits-json" in answer.text) == (413, True)
