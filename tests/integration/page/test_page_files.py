"""The files of the page as they are served, without a browser."""

import json
import re
import shutil
import subprocess

import pytest
import requests

from ksrv.images.geometry import Geometry
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol.metadata import model_metadata
from ksrv.server.page.files import FOLDER, SECURITY_HEADERS
from ksrv.testing import Server
from tests.support.models import write_double

FILES = sorted(path.name for path in FOLDER.iterdir())
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PATHS = ["/", *(f"/ui/{name}" for name in FILES if name != "index.html")]


@pytest.mark.parametrize("path", PATHS)
def test_every_file_is_served_with_strict_headers(server, path):
    answer = requests.get(server.url + path, headers=BROWSER, timeout=30)
    assert answer.status_code == 200
    assert (
        answer.content
        == (FOLDER / (path.removeprefix("/ui/").strip("/") or "index.html")).read_bytes()
    )
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    again = requests.get(
        server.url + path, headers={**BROWSER, "If-None-Match": answer.headers["ETag"]}, timeout=30
    )
    assert again.status_code == 304 and again.content == b""
    head = requests.head(server.url + path, headers=BROWSER, timeout=30)
    assert head.status_code == 200 and head.headers["Content-Length"] == str(len(answer.content))


@pytest.mark.parametrize(
    "path",
    ["/ui", "/ui/", "/ui/index.html", "/ui/..%2fapp.py", "/ui/../app.py", "/ui/%2e%2e/x", "//"],
)
def test_nothing_else_is_served(server, path):
    session = requests.Session()
    request = requests.Request("GET", server.url + "/").prepare()
    request.url = server.url + path
    assert session.send(request, timeout=30).status_code in (400, 404)


def test_other_methods_are_told_what_the_page_takes(server):
    answer = requests.post(server.url + "/", data=b"x", timeout=30)
    assert answer.status_code == 405 and "GET" in answer.headers["Allow"]


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
def test_other_clients_are_told_that_the_server_lives(server, accept):
    """KServe's client asks so with protocol v1."""
    answer = requests.get(server.url + "/", headers={"Accept": accept}, timeout=30)
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    assert answer.headers["Vary"] == "Accept"


def test_the_page_is_off_where_it_is_not_wanted(tmp_path):
    write_double(tmp_path / "models")
    with Server(tmp_path / "models", ui=False) as server:
        for path in PATHS[1:]:
            assert requests.get(server.url + path, timeout=30).status_code == 404
        answer = requests.get(server.url + "/", headers=BROWSER, timeout=30)
        assert answer.json() == {"status": "alive"}


def test_the_page_needs_no_token_and_says_nothing_of_the_models(tmp_path):
    write_double(tmp_path / "models")
    (tmp_path / "tokens").write_text("secret\n")
    with Server(tmp_path / "models", token_file=str(tmp_path / "tokens")) as server:
        answer = requests.get(server.url + "/", headers=BROWSER, timeout=30)
        assert answer.status_code == 200 and "double" not in answer.text
        assert requests.get(server.url + "/v2/models", timeout=30).status_code == 401
        assert requests.get(server.url + "/elsewhere", timeout=30).status_code == 401


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host_or_makes_markup_of_text(name):
    text = (FOLDER / name).read_text()
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                 "DOMParser", "srcdoc", 'setAttribute("on', "javascript:"):  # fmt: skip
        assert sink not in text
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_the_metadata_tells_the_labels(tmp_path):
    folder = write_double(tmp_path / "models")
    with (folder / "model.yaml").open("a") as yaml:
        yaml.write("labels: labels.txt\n")
    (folder / "labels.txt").write_text('a "cat"\nthe größte dog\n')
    with Server(tmp_path / "models") as server:
        metadata = requests.get(f"{server.url}/v2/models/double", timeout=30).json()
        assert json.loads(metadata["properties"]["labels"]) == ['a "cat"', "the größte dog"]
        (folder / "labels.txt").write_text("x" * 100 + "\n" + "a longer label\n" * 5000)
        assert requests.post(
            f"{server.url}/v2/repository/models/double/load", json={}, timeout=60
        ).ok
        assert "properties" not in requests.get(f"{server.url}/v2/models/double", timeout=30).json()


@pytest.fixture
def run_js(tmp_path):
    """Run a module beside the page's files, and return what it prints."""
    node = shutil.which("node") or pytest.skip("Node.js is not installed")
    shutil.copytree(FOLDER, tmp_path / "static")
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(code):
        main = tmp_path / "main.js"
        main.write_text(code)
        done = subprocess.run([node, main], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.mark.parametrize("name", ["jpeg", "webp", "tiff"])
def test_file_of_an_accepted_format_is_sent_unchanged(run_js, name):
    printed = run_js(
        'import { readable } from "./static/pictures.js";\n'
        f'const file = new Blob(["x"], {{ type: "image/{name}" }});\n'
        f'console.log(await readable(file, {{ formats: "bmp,{name}" }}) === file);\n'
    )
    assert printed == "true\n"


# The parts of a browser that `readable` uses: they tell how the picture was read.
BROWSER_PARTS = """
let orientation = "";
globalThis.createImageBitmap = async (file, options) => {
  orientation = options?.imageOrientation ?? "from-image";
  return { width: 2, height: 1, close() {} };
};
globalThis.OffscreenCanvas = class {
  getContext() { return { drawImage() {} }; }
  async convertToBlob({ type }) {
    if (broken) throw new Error("cannot be encoded");
    return new Blob([orientation], { type });
  }
};
globalThis.document = { createElement: () => ({
  getContext: () => ({ drawImage() {} }),
  toBlob(resolve, type) { resolve(broken ? null : new Blob([orientation], { type })); },
}) };
const file = new File(["x"], "a.b.gif", { type: "image/gif" });
"""


@pytest.mark.parametrize(("exif", "turned"), [("ignore", "none"), ("apply", "from-image")])
def test_converted_picture_is_turned_as_the_model_turns_it(run_js, exif, turned):
    printed = run_js(
        'import { readable } from "./static/pictures.js";\nconst broken = false;' + BROWSER_PARTS +
        f'const sent = await readable(file, {{ formats: "jpeg,png", exif: "{exif}" }});\n'
        "console.log(sent.name, sent.type, await sent.text());\n"
    )  # fmt: skip
    assert printed == f"a.b.png image/png {turned}\n"


def test_picture_that_cannot_be_converted_is_no_file(run_js):
    printed = run_js(
        'import { readable } from "./static/pictures.js";\nconst broken = true;' + BROWSER_PARTS +
        'const failed = (error) => error.message;\n'
        'console.log(await readable(file, { exif: "ignore" }).catch(failed));\n'
    )  # fmt: skip
    assert printed == "cannot be encoded\n"


@pytest.mark.parametrize(
    ("keys", "sides"),
    [
        ({}, (-1, -1)),
        ({}, (224, 160)),
        ({}, ((100, 200), (32, 640))),
        ({}, (48, -1)),
        ({}, (-1, 48)),
        ({"multiple": 32}, (-1, -1)),
        ({"resize": "none"}, (-1, -1)),
        ({"shorter_side": 224}, (-1, -1)),
        ({"shorter_side": 256}, (224, 224)),
        ({"shorter_side": 800, "max_side": 1333, "resize": "pillow"}, (-1, -1)),
        ({"resize_to": (256, 300)}, (224, 224)),
        ({"min_side": 736, "multiple": 32, "rounding": "nearest"}, (-1, -1)),
        ({"max_side": 960, "multiple": 32}, (-1, -1)),
        ({"resize": "letterbox"}, (640, 640)),
        ({"resize": "letterbox", "align": "start"}, (640, 512)),
        ({"resize": "letterbox", "max_side": 640, "multiple": 32}, (-1, -1)),
        ({"resize": "letterbox", "rounding": "up"}, (48, (32, 320))),
        ({"resize": "letterbox"}, (48, -1)),
    ],
)
def test_the_page_draws_over_the_part_that_the_model_reads(run_js, keys, sides):
    image = ImageSpec(**keys)
    tensor = TensorSpec("x", "UINT8", (-1, *sides, 3), image=image)
    document = model_metadata(ModelSpec("m", inputs=(tensor,)), [])
    geometry = Geometry(image, sides)
    sizes = [(500, 1000), (1000, 500), (333, 777), (51, 40), (1, 3000), (640, 640), (427, 640)]
    pictures = json.dumps([{"height": height, "width": width} for height, width in sizes])
    printed = run_js(
        'import { imageOf, seenBy } from "./static/geometry.js";\n'
        f'const image = imageOf({json.dumps(document["properties"])}, "x");\n'
        f"console.log(JSON.stringify({pictures}.map((one) => seenBy(one, image))));\n"
    )
    for size, seen in zip(sizes, json.loads(printed), strict=True):
        row = geometry.row(size)
        placement = geometry.placement(size, row)
        assert (seen["rows"], seen["columns"]) == row
        # The borders of the row, in pixels of the picture.
        left, top = -placement.left / placement.scale_x, -placement.top / placement.scale_y
        width, height = row[1] / placement.scale_x, row[0] / placement.scale_y
        found = [seen[key] for key in ("x", "y", "width", "height")]
        assert found == pytest.approx([left, top, width, height])


@pytest.mark.parametrize(
    ("name", "values", "labels", "view"),
    [
        ("output", [0.2, 0.5, 0.3], None, "output as classes"),
        ("scores", [-2.5, 4.0, 1.0], None, "scores as classes"),
        ("output", [-2.5, 4.0, 1.0], ["a", "b", "c"], "output as classes"),
        ("output", [119.0, 122.5, 97.0], None, "output as numbers"),
        ("output", [0.2, 0.5, 0.6], None, "output as numbers"),
        ("output", [], None, "output as numbers"),
    ],
)
def test_only_labelled_or_probable_numbers_are_classes(
    run_js, tmp_path, name, values, labels, view
):
    datatypes = 'export const DTYPES = { FP32: "<f4" };\nexport const FLOATING = ["FP32"];\n'
    (tmp_path / "static" / "datatypes.js").write_text(datatypes)
    tensor = {"name": name, "datatype": "FP32", "shape": [len(values)], "values": values}
    printed = run_js(
        'import { viewsOf } from "./static/results.js";\n'
        f"console.log(viewsOf([{json.dumps(tensor)}], {json.dumps(labels)}, null)[0].title);\n"
    )
    assert printed == f"{view}\n"
