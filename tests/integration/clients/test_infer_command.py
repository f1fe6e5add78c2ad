"""`ksrv infer` against a real server."""

import json

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.testing import Server
from tests.support.models import write_double, write_mean, write_model

PAIR = 'def inference(a, b): return {"difference": a - b}\n'

WORDS = 'def inference(text): return [f"{len(element)} bytes" for element in text]\n'


OPEN = """
def handle(batch, context):
    return {f"{name} doubled": batch[name] * 2 for name in batch}
"""


STORY = """
def inference(text):
    for word in text[0].decode().split():
        yield [word + " "]
"""


SEEN = """
import cv2
import numpy as np


def inference(image):
    mask = np.zeros((len(image), 8, 8), np.int64)
    mask[:, 4:] = 3
    picture = cv2.imencode(".png", np.zeros((2, 2, 3), np.uint8))[1].tobytes()
    return {
        "mask": mask,
        "boxes": np.float32([[[1, 1, 6, 6]]]),
        "note": [b"seen"],
        "picture": [picture],
    }
"""
SEEN_YAML = """
inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]
outputs:
  - {name: mask, datatype: INT64, shape: [-1, 8, 8]}
  - {name: boxes, datatype: FP32, shape: [-1, -1, 4]}
  - {name: note, datatype: BYTES, shape: [-1]}
  - {name: picture, datatype: BYTES, shape: [-1]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_double(root)
    write_mean(root)
    vector = "datatype: FP32, shape: [-1, 2]"
    write_model(
        root, "pair", PAIR,
        f"inputs: [{{name: a, {vector}}}, {{name: b, {vector}}}]\n"
        f"outputs: [{{name: difference, {vector}}}]\n",
    )  # fmt: skip
    write_model(
        root, "words", WORDS,
        "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: said, datatype: BYTES, shape: [-1]}]\n",
    )  # fmt: skip
    write_model(
        root, "story", STORY,
        "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: said, datatype: BYTES, shape: [-1]}]\nwarmup: false\n",
    )  # fmt: skip
    write_model(root, "open", OPEN, "warmup: false\n")
    write_model(root, "seen", SEEN, SEEN_YAML)
    with Server(root, grpc="off") as running:
        yield running


@pytest.fixture
def run(server):
    runner = CliRunner()

    def invoke(*arguments):
        return runner.invoke(main, ["infer", "--url", server.url, *map(str, arguments)])

    return invoke


def save(folder, name, array):
    np.save(folder / name, array)
    return folder / name


def test_without_files_the_models_inputs_are_printed(run):
    assert json.loads(run("double").output)["inputs"][0]["shape"] == [-1, 4]


def test_images_are_one_batch(run, tmp_path):
    for name, value in (("a.png", 10), ("b.jpg", 20)):
        assert cv2.imwrite(str(tmp_path / name), np.full((9, 7, 3), value, np.uint8))
    done = run("mean", tmp_path / "a.png", tmp_path / "b.jpg")
    assert done.exit_code == 0, done.output
    assert "mean  FP32[2,3]" in done.output
    assert "10." in done.output and "20." in done.output


def test_arrays_are_raw_tensors(run, tmp_path):
    done = run("double", save(tmp_path, "x.npy", np.float32([[1, 2, 3, 4]])))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == ["y  FP32[1,4]", "  [[2. 4. 6. 8.]]"]


def test_several_inputs_are_named_or_taken_in_order(run, tmp_path):
    one = save(tmp_path, "one.npy", np.float32([[5, 7]]))
    other = save(tmp_path, "other.npy", np.float32([[1, 2]]))
    assert "[[4. 5.]]" in run("pair", one, other).output
    assert "[[-4. -5.]]" in run("pair", f"b={one}", f"a={other}").output


@pytest.mark.parametrize("value", ["[1,", '"text"', "{}", "[[1],[2,3]]", "null", "[" * 5000])
def test_value_that_is_neither_file_nor_numbers_is_reported(run, value):
    done = run("pair", f"a={value}", "b=[[1,2]]")
    assert done.exit_code == 1
    assert "no such file" in done.output and "a=FILE or a=JSON" in done.output


def test_a_text_grows_as_its_parts_come(run):
    assert run("story", "--stream", "--text", "once upon a time").output == "once upon a time \n"


def test_parts_as_json_are_a_line_each(run):
    lines = run("story", "--stream", "--json", "--text", "once upon").output.splitlines()
    assert [json.loads(line)["outputs"][0]["data"] for line in lines] == [["once "], ["upon "]]


def test_parts_that_are_no_text_are_shown(run):
    assert "FP32[1,2]" in run("pair", "--stream", "a=[[1,2]]", "b=[[1,2]]").output


def test_inputs_that_are_not_declared_are_named(run, tmp_path):
    one = save(tmp_path, "one.npy", np.float32([5, 7]))
    other = save(tmp_path, "a=b.npy", np.float32([1, 2]))
    done = run("open", f"x={one}", f"y={other}")
    assert done.exit_code == 0, done.output
    lines = {"x doubled  FP32[2]", "  [10. 14.]", "y doubled  FP32[2]", "  [2. 4.]"}
    assert set(done.output.splitlines()) == lines
    assert "data doubled" in run("open", one).output
    assert "data doubled" in run("open", other).output  # a file of this name


def test_other_files_are_bytes_and_texts_are_printed(run, tmp_path):
    (tmp_path / "word.txt").write_text("hello")
    done = run("words", tmp_path / "word.txt")
    assert done.output.splitlines() == ["said  BYTES[1]", "  5 bytes"], done.output


def test_a_json_file_is_the_request(run, tmp_path):
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}
    (tmp_path / "request.json").write_text(json.dumps({"inputs": [entry]}))
    assert "y  FP32[1,4]" in run("double", tmp_path / "request.json").output


def test_unknown_input_name_shows_the_servers_error(run, tmp_path):
    done = run("double", f"z={save(tmp_path, 'z.npy', np.float32([[1, 2, 3, 4]]))}")
    assert done.exit_code == 1
    assert "400: " in done.output and "'z'" in done.output and "'x'" in done.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nope",), "404: "),
        (("double", "/no/such.npy"), "/no/such.npy"),
        (("double", "/no/such.json"), "/no/such.json"),
        (("double", "a.npy", "b.npy"), "no such file: a.npy"),
        (("double", "x=/no/such.npy"), "no such file: /no/such.npy"),
        (("open", "x=/no/such.npy"), "no such file: /no/such.npy"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, text):
    done = run(*arguments)
    assert done.exit_code == 1
    assert text in done.output


def test_arrays_of_objects_and_strings_are_refused(run, tmp_path):
    objects = save(tmp_path, "objects.npy", np.array([{}], dtype=object))
    assert "cannot be read" in run("double", objects).output
    texts = save(tmp_path, "texts.npy", np.array(["a"]))
    assert "takes FP32, got a text" in run("double", texts).output


def test_two_arrays_for_one_input_are_refused(run, tmp_path):
    one = save(tmp_path, "one.npy", np.float32([[1, 2, 3, 4]]))
    assert "every input" in run("double", one, one).output
    assert "FP32[2,4]" in run("double", f"x={one}", f"x={one}").output
    other = save(tmp_path, "other.npy", np.float32([1]))
    assert "do not fit" in run("double", f"x={one}", f"x={other}").output


def test_texts_and_stdin(run, server):
    assert run("words", "--text", "hello", "--text", "text=é=").output.splitlines() == [
        "said  BYTES[2]",
        "  5 bytes",
        "  3 bytes",
    ]
    done = CliRunner().invoke(main, ["infer", "--url", server.url, "words", "-"], input=b"123\xff")
    assert "4 bytes" in done.output, done.output
    done = CliRunner().invoke(
        main, ["infer", "words", "text=-"], input=b"1", env={"KSRV_URL": server.url}
    )
    assert "1 bytes" in done.output, done.output


def test_the_answer_as_json(run, tmp_path):
    done = run("double", "--json", save(tmp_path, "x.npy", np.float32([[1, 2, 3, np.nan]])))
    assert json.loads(done.output) == {
        "model_name": "double",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 4.0, 6.0, None]}
        ],
    }


def test_outputs_are_saved_and_drawn(run, tmp_path):
    image = tmp_path / "a.png"
    assert cv2.imwrite(str(image), np.full((8, 8, 3), 100, np.uint8))
    folder = tmp_path / "saved" / "here"
    done = run("seen", "--save", folder, image)
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "boxes-0.png",
        "boxes.npy",
        "mask-0.png",
        "mask.npy",
        "note-0.txt",
        "picture-0.png",
    ]
    np.testing.assert_array_equal(np.load(folder / "boxes.npy"), [[[1, 1, 6, 6]]])
    mask = cv2.imread(str(folder / "mask-0.png"))
    assert (mask[0, 0] == 100).all() and (mask[7, 7] != 100).any()
    boxes = cv2.imread(str(folder / "boxes-0.png"))
    assert (boxes[1, 3] != 100).any() and (boxes[4, 4] == 100).all()
    (tmp_path / "file").write_text("")
    assert run("seen", "--save", tmp_path / "file" / "x", image).exit_code == 1
