"""Functions with Python's own types in their hints: what they declare, what they get, and what clients get."""

import base64
import io
import json
import threading

import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.testing import Server, load
from tests.support.models import write_functions

CALC = """
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ksrv import BaseHandler, Float32, InferenceError, settings


@dataclass
class Person:
    name: str
    age: Annotated[int, msgspec.Meta(ge=0, le=150)]
    heights: list[float] = field(default_factory=lambda: [1.5])
    note: str | None = None

    def __post_init__(self):
        if self.name == "nobody":
            raise ValueError("nobody is not a person")


class Point(msgspec.Struct, rename="camel"):
    left_side: float
    labels: list[str] = msgspec.field(default_factory=lambda: ["a", "b"])


class Sums(TypedDict):
    total: float
    words: list[str]


def calc(a: float, b: float, op: Literal["+", "*"] = "+") -> float:
    assert type(a) is float and type(b) is float and type(op) is str
    return a + b if op == "+" else a * b


def shout(text: str) -> str:
    assert type(text) is str
    return text.upper()


def size(content: bytes, times: int = 1, wanted: bool = True) -> int:
    assert type(content) is bytes and type(times) is int and type(wanted) is bool
    return len(content) * times if wanted else 0


def sums(values: list[int], grid: list[list[float]], names: list[str]) -> Sums:
    assert type(values) is list
    return {"total": sum(values) + sum(map(sum, grid)), "words": [one + "!" for one in names]}


class Nothing(TypedDict):
    cubes: list[list[list[float]]]
    ids: list[int]
    words: list[list[str]]


def nothing(rows: int) -> Nothing:
    return {"cubes": [[]] * rows, "ids": [], "words": [[]] * rows}


def person(who: Person) -> Person:
    assert type(who) is Person
    return Person(who.name * 2, who.age + 1, who.heights, who.note or "none")


def point(where: Point, by: float) -> Point:
    return Point(where.left_side + by, where.labels[::-1])


def vector(x: np.ndarray, ids: NDArray[np.int64], grid: Annotated[np.ndarray, Float32[2, 2]], by: float) -> np.ndarray:
    assert x.dtype == np.float32 and x.ndim == 1 and ids.dtype == np.int64 and grid.shape == (2, 2)
    return x * by + ids + grid.sum()


def scaled(x: np.ndarray) -> np.ndarray:
    assert x.ndim == 2 and x.dtype == np.float32
    return x * 2


def negative(picture: Image.Image) -> Image.Image:
    assert picture.mode == "RGB"
    return picture.point(lambda value: 255 - value)


def wide(picture: Image.Image) -> Annotated[Image.Image, "image/jpeg"]:
    return picture.resize((picture.width * 2, picture.height))


def tone(hertz: int) -> Annotated[bytes, "audio/wav"]:
    return b"RIFF" + bytes([hertz])


def table(rows: int) -> list[dict[str, Any]]:
    return [{"row": row, "array": np.arange(2), "point": Point(1.0)} for row in range(rows)]


async def slow(text: str) -> str:
    if text == "refuse":
        raise InferenceError("not this text", 422)
    return text + "!"


def words(text: str) -> Iterator[str]:
    for word in text.split():
        yield word + " "


def counts(most: int) -> Iterator[float]:
    for number in range(most):
        yield number / 2


async def later(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield letter


@settings(batching={"max_batch_size": 4, "max_delay_ms": 200})
def batched(text: str) -> str:
    if text == "refuse":
        raise InferenceError("not this text", 422)
    if text == "fail":
        raise KeyError(text)
    return text[::-1]


def halved(x: float, by: float | None) -> float:
    return x / 2 if by is None else x / by


class Calc(BaseHandler):
    def inference(self, a: float, b: float = 2.0) -> float:
        return a * b
"""
MODELS = ["calc", "shout", "size", "sums", "nothing", "person", "point", "vector", "scaled", "negative", "wide", "tone", "table", "slow", "words", "counts", "later", "batched", "halved"]  # fmt: skip


@pytest.fixture(scope="module", params=["inline", "process"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_functions(folder, CALC, dict.fromkeys(MODELS, f"executor: {request.param}\n"))
    with Server([str(folder)]) as running:
        yield running


def generate(server, model, body, status=200):
    answer = requests.post(f"{server.url}/v2/models/{model}/generate", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    found = answer.json()
    return found["error"] if status != 200 else found


def png(color, size=(4, 3)):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def declared(server, model):
    found = requests.get(f"{server.url}/v2/models/{model}").json()
    return [
        [(one["name"], one["datatype"], one["shape"]) for one in found[side]]
        for side in ("inputs", "outputs")
    ]


def test_hints_declare_inputs_and_outputs(server):
    assert declared(server, "calc") == [
        [("a", "FP64", [-1]), ("b", "FP64", [-1]), ("op", "BYTES", [-1])],
        [("output", "FP64", [-1])],
    ]
    assert declared(server, "person") == [
        [("name", "BYTES", [-1]), ("age", "INT64", [-1]), ("heights", "FP64", [-1, -1]), ("note", "BYTES", [-1])],
        [("name", "BYTES", [-1]), ("age", "INT64", [-1]), ("heights", "FP64", [-1, -1]), ("note", "BYTES", [-1])],
    ]  # fmt: skip
    assert declared(server, "point")[0] == [
        ("leftSide", "FP64", [-1]), ("labels", "BYTES", [-1, -1]), ("by", "FP64", [-1]),
    ]  # fmt: skip
    assert declared(server, "size") == [
        [("content", "BYTES", [-1]), ("times", "INT64", [-1]), ("wanted", "BOOL", [-1])],
        [("output", "INT64", [-1])],
    ]
    assert declared(server, "vector")[0] == [
        ("x", "FP32", [-1, -1]), ("ids", "INT64", [-1, -1]), ("grid", "FP32", [-1, 2, 2]), ("by", "FP64", [-1]),
    ]  # fmt: skip
    assert declared(server, "negative") == [
        [("picture", "UINT8", [-1, -1, -1, 3])],
        [("output", "BYTES", [-1])],
    ]
    assert declared(server, "table")[1] == [("output", "BYTES", [-1])]


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        ("calc", {"a": 1, "b": 2.5}, 3.5),
        ("calc", {"a": 2, "b": 2.5, "op": "*"}, 5.0),
        ("shout", {"text": "grün"}, "GRÜN"),
        ("size", {"content": "abc"}, 3),
        ("size", {"content": {"b64": "/////w=="}, "times": 2}, 8),
        ("size", {"content": "abc", "wanted": False}, 0),
        ("scaled", {"x": [1, 2]}, [2.0, 4.0]),
        ("scaled", {"x": [[1, 2], [3, 4]]}, [[2.0, 4.0], [6.0, 8.0]]),
        ("vector", {"x": [1, 2], "ids": [1, 1], "grid": [[1, 1], [1, 1]], "by": 2}, [7.0, 9.0]),
        ("slow", {"text": "hi"}, "hi!"),
        ("words", {"text": "a b"}, "a b "),
        ("later", {"text": "abc"}, "abc"),
        ("halved", {"x": 3}, 1.5),
        ("halved", {"x": 3, "by": 3}, 1.0),
        ("calc", {"a": [1, 2], "b": [3, 4]}, [4.0, 6.0]),
    ],
)
def test_plain_json_gets_the_value_of_each_row(server, model, body, expected):
    assert generate(server, model, body)["output"] == expected


def test_records_are_inputs_and_outputs(server):
    body = {"name": "Ann", "age": 40}
    expected = {"name": "AnnAnn", "age": 41, "heights": 1.5, "note": "none"}
    assert expected == {name: generate(server, "person", body)[name] for name in expected}
    body |= {"heights": [1, 2, 3], "note": "x"}
    assert generate(server, "person", body)["heights"] == [1.0, 2.0, 3.0]
    found = generate(server, "point", {"leftSide": 1, "by": 2})
    assert (found["leftSide"], found["labels"]) == (3.0, ["b", "a"])
    body = {"values": [1, 2], "grid": [[1], [2]], "names": ["x", "yy"]}
    found = generate(server, "sums", body)
    assert (found["total"], found["words"]) == (6.0, ["x!", "yy!"])
    rows = generate(server, "person", [{"name": "a", "age": 1}, {"name": "b", "age": 2}])
    assert [(row["name"], row["age"]) for row in rows] == [("aa", 2), ("bb", 3)]


@pytest.mark.parametrize("rows", [0, 2])
def test_empty_lists_have_the_declared_datatype_and_dimensions(server, rows):
    with Client(server.url) as client:
        found = client.infer("nothing", {"rows": [rows]})
    shapes = {"cubes": (1, rows, 0, 0), "ids": (1, 0), "words": (1, rows, 0)}
    assert {name: found[name].shape for name in shapes} == shapes
    assert (found["cubes"].dtype, found["ids"].dtype) == (np.float64, np.int64)


def test_other_values_are_json(server):
    found = json.loads(generate(server, "table", {"rows": 2})["output"])
    assert found[1] == {"row": 1, "array": [0, 1], "point": {"leftSide": 1.0, "labels": ["a", "b"]}}


@pytest.mark.parametrize(
    ("model", "body", "error"),
    [
        ("person", {"name": "a", "age": -1}, "the input 'age': Expected `int` >= 0"),
        ("person", {"name": "a", "age": 151}, "the input 'age': Expected `int` <= 150"),
        ("person", {"name": "nobody", "age": 1}, "not a Person: nobody is not a person"),
        ("person", {"age": 1}, "name"),
        ("calc", {"a": 1, "b": 2, "op": "-"}, "the input 'op': Invalid enum value '-'"),
        ("calc", {"a": "x", "b": 2}, "a"),
        ("shout", {"text": {"b64": "/w=="}}, "the input 'text': the text is not UTF-8"),
        ("size", {"content": "a", "times": 1.5}, "times"),
    ],
)  # fmt: skip
def test_wrong_value_gets_400(server, model, body, error):
    assert error in generate(server, model, body, 400)


def test_error_of_the_function_reaches_the_client(server):
    assert generate(server, "slow", {"text": "refuse"}, 422) == "not this text"
    assert "KeyError" in generate(server, "batched", {"text": "fail"}, 500)


def test_failed_row_fails_its_request_alone(server):
    found = {}
    texts = ("abc", "refuse", "fail", "xyz")

    def ask(text):
        url = f"{server.url}/v2/models/batched/generate"
        found[text] = requests.post(url, json={"text": text}, timeout=60)

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[text].status_code for text in texts] == [200, 422, 500, 200]
    assert [found[text].json()["output"] for text in ("abc", "xyz")] == ["cba", "zyx"]
    assert "KeyError" in found["fail"].json()["error"]


def test_streams_yield_each_value(server):
    with Client(server.url) as client:
        parts = [part["output"].tolist() for part in client.stream("words", {"text": ["a b"]})]
        assert parts == [[b"a "], [b"b "]]
        numbers = [part["output"].tolist() for part in client.stream("counts", {"most": [3]})]
        assert numbers == [[0.0], [0.5], [1.0]]
        parts = [part["output"].tolist() for part in client.stream("later", {"text": ["ab"]})]
        assert parts == [[b"a"], [b"b"]]
        parts = [part["output"].tolist() for part in client.stream("words", {"text": ["a b", "c"]})]
        assert b"".join(one[0] or b"" for one in parts) == b"a b "


def test_pictures_are_pillow_images(server):
    from PIL import Image

    url = f"{server.url}/v2/models/{{}}/infer"
    answer = requests.post(url.format("negative"), files={"picture": png((255, 0, 10))})
    assert answer.headers["Content-Type"] == "image/png"
    picture = Image.open(io.BytesIO(answer.content))
    assert (picture.size, picture.getpixel((0, 0))) == ((4, 3), (0, 255, 245))
    answer = requests.post(url.format("wide"), files={"picture": png((255, 0, 10))})
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (8, 3)
    body = {"picture": base64.b64encode(png((0, 0, 0))).decode()}
    found = generate(server, "negative", body)
    assert found["content_types"] == {"output": "image/png"}
    tone = requests.post(url.format("tone"), files={"hertz": (None, "7")})
    assert (tone.content, tone.headers["Content-Type"]) == (b"RIFF\x07", "audio/wav")


def test_rest_and_grpc_clients_get_the_values(server):
    for url in (server.url, f"grpc://{server.grpc}"):
        with Client(url) as client:
            assert client.infer("calc", {"a": [1.0, 2.0], "b": [3.0, 4.0]})["output"].tolist() == [
                4,
                6,
            ]
            assert client.infer("shout", ["a", "b"])["output"].tolist() == [b"A", b"B"]
            x = np.arange(6, dtype=np.float64).reshape(2, 3)
            assert (client.infer("scaled", x)["output"] == x * 2).all()


def test_method_of_a_handler_gets_rows_too(tmp_path):
    (tmp_path / "app.py").write_text(CALC)
    with load(f"{tmp_path}/app.py:Calc") as model:
        assert model.infer({"a": np.array([2.0, 3.0])})["output"].tolist() == [4.0, 6.0]


def test_only_typed_function_of_a_file_is_served(tmp_path):
    (tmp_path / "calc.py").write_text(
        "def _one() -> float: return 1\ndef add(a: float, b: float) -> float: return a + b\n"
    )
    with Server(str(tmp_path / "calc.py")) as server:
        assert generate(server, "calc", {"a": 1, "b": 2})["output"] == 3.0


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def f(x: dict) -> float: return 1", r"f: the parameter 'x': dict is not an input; expected str, bytes"),
        ("def f(x: list) -> float: return 1", r"list is not an input"),
        ("def f(x: list[dict]) -> float: return 1", r"list\[dict\] is not an input"),
        ("def f(x: tuple[int, str]) -> float: return 1", r"tuple\[int, str\] is not an input"),
        ("def f(x: float, y) -> float: return 1", "the parameter 'y' has no type hint"),
        ("def f(x: float, batch) -> float: return 1", "the parameter 'batch' has no type hint"),
        ("def f(x: float, y: object) -> float: return 1", "object is not an input"),
        ("def f(*x: float) -> float: return 1", r"'\*x: float' has no name"),
        ("def f(x: float, /) -> float: return 1", "has no name"),
        ("def f(x: int | str) -> float: return 1", "is not an input"),
        ("def f(x: float) -> float | None: return 1", "the returned value may be None"),
        ("def f(x: P, a: float) -> float: return 1", "two fields or parameters have one name"),
        ("def f(x: P | None = None) -> float: return 1", "has a default; give it to the fields of P"),
        ("def f(x: Q) -> float: return 1", r"Q.inner: P is not an input"),
        ("def f(x: float) -> Iterator[P]: yield 1", "P is not a value of a stream"),
        ("def f(x: Annotated[str, 'a']) -> Annotated[float, 'audio/wav']: return 1", "the output has FP64"),
        ("def f(x: float) -> float: return 1\ndef g(x: float) -> float: return 1", "name it: .*:f"),
    ],
)  # fmt: skip
def test_hint_that_is_no_tensor_is_refused(tmp_path, source, error):
    head = (
        "from collections.abc import Iterator\nfrom dataclasses import dataclass\nfrom typing import Annotated\n"
        "@dataclass\nclass P:\n    a: float\n    b: float\n@dataclass\nclass Q:\n    inner: P\n"
    )
    (tmp_path / "app.py").write_text(head + source)
    target = "app.py" if "def g" in source else "app.py:f"
    with pytest.raises(Exception, match=error):
        load(str(tmp_path / target)).close()


def test_declared_inputs_win_over_hints(tmp_path):
    (tmp_path / "handler.py").write_text("def inference(x: list[float]): return x * 2\n")
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [-1, 2]}]\n"
    )
    with load(str(tmp_path)) as model:
        assert model.infer({"x": np.ones((1, 2), np.float32)})["output"].tolist() == [[2, 2]]
