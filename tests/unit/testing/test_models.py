"""`ksrv.testing.load`: a model in this process, with real batching and image rules."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from ksrv import BaseHandler, Bytes, Float32, Image, InferenceError, settings
from ksrv.testing import KsrvError, LoadFailed, load
from tests.support.paths import ROOT
from tests.support.torchserve.handler_folder import old_handler

pytest_plugins = ["ksrv.testing.fixtures"]


class Bright(BaseHandler):
    def inference(self, image: Image[4, 4, 3]) -> Float32[3]:
        return image.mean(axis=(1, 2))


@settings(batching={"max_batch_size": 4}, parameters={"by": 10})
class Sizes(BaseHandler):
    """Returns the number of rows of its batch, and fails negative rows."""

    def inference(self, x: Float32[1], batch) -> Float32[1]:
        for row in np.flatnonzero(x[:, 0] < 0):
            batch.fail(row, f"row {row} is below zero", 422)
        for row in range(batch.rows):
            batch.set_parameter(row, "requests", len(batch.requests))
        return np.full_like(x, batch.rows + self.context.parameters["by"])


def twice(x: Float32[2]) -> Float32[2]:
    return x * 2


def words(text: Bytes, batch) -> Bytes:
    return [f"{one.decode()} {batch.requests[0].headers.get('who', '-')}" for one in text]


def spell(text):
    for letter in text[0].decode():
        yield [letter]


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "grey.png"
    cv2.imwrite(str(path), np.full((40, 60), 9, np.uint8))  # grey, and of another size
    return path


def test_a_class_answers_arrays_and_image_files(picture):
    with load(Bright) as model:
        assert (model.name, model.spec.inputs[0].name) == ("bright", "image")
        array = np.full((2, 4, 4, 3), 7, np.float32)
        assert model.infer({"image": array})["output"].tolist() == [[7, 7, 7]] * 2
        for file in (picture, picture.read_bytes(), [picture]):
            assert model.infer({"image": file})["output"].tolist() == [[9, 9, 9]]
        assert model.infer(array[0])["output"].tolist() == [[7, 7, 7]]  # one row, the only input


def test_load_refuses_the_same_requests_as_a_server(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with load(Bright) as model:
        for inputs, status in (
            ({"image": np.zeros((1, 5, 4, 3), np.float32)}, 400),
            ({"picture": np.zeros((1, 4, 4, 3), np.float32)}, 400),
            ({}, 400),
            ({"image": tmp_path / "broken.png"}, 400),
        ):
            with pytest.raises(KsrvError) as raised:
                model.infer(inputs)
            assert raised.value.http_status == status, inputs


def test_requests_join_as_the_batching_says():
    with load(Sizes) as model:
        answers = model.infer_many([{"x": [[float(n)]]} for n in range(6)])
        assert [one["output"].item() for one in answers] == [14] * 4 + [12] * 2
        assert [one.parameters["requests"] for one in answers] == [4] * 4 + [2] * 2
        wide = model.infer_many([{"x": [[1.0], [2.0], [3.0]]}, {"x": [[1.0], [2.0]]}])
        assert [one["output"].tolist() for one in wide] == [[[13]] * 3, [[12]] * 2]


def test_one_requests_failure_is_its_own():
    with load(Sizes) as model:
        good, bad, refused = model.infer_many(
            [{"x": [[1.0]]}, {"x": [[-1.0]]}, {"x": [[1.0, 2.0]]}]
        )
        assert good["output"].item() == 12
        assert (bad.http_status, bad.message) == (422, "row 1 is below zero")
        assert refused.http_status == 400
        with pytest.raises(InferenceError, match="below zero"):
            model.infer({"x": [[-1.0]]})


def test_requests_without_batching_are_never_joined():
    with load(Sizes, batching=None, parameters={"by": 0}) as model:
        answers = model.infer_many([{"x": [[1.0]]}, {"x": [[2.0]]}])
        assert [one["output"].item() for one in answers] == [1, 1]


def test_settings_of_the_call_win():
    with load(Sizes, parameters={"by": 100}, name="mine") as model:
        assert (model.name, model.infer([[1.0]])["output"].item()) == ("mine", 101)


def test_a_function_and_a_local_class(load_model):
    assert load_model(twice).infer([[1.0, 2.0]])["output"].tolist() == [[2, 4]]
    seen = []

    class Local(BaseHandler):
        def inference(self, x: Float32[2]) -> Float32[2]:
            seen.append(x.shape)
            return x

        def close(self):
            seen.append("closed")

    with load(Local, warmup=False) as model:
        model.infer([[1.0, 2.0]])
    assert seen == [(1, 2), "closed"]


def test_texts_headers_and_ids(load_model):
    model = load_model(words)
    answer = model.infer({"text": ["a", b"b"]}, headers={"Who": "me"}, id="one")
    assert (answer["output"].tolist(), answer.id) == ([b"a me", b"b me"], "one")
    assert {"inference", "queue"} <= answer.timings.keys()


def test_tensors_given_as_inputs_of_a_function(load_model):
    model = load_model(lambda x: x + 1, inputs={"x": Float32[2]}, outputs={"y": Float32[2]})
    assert model.infer({"x": [[1, 2]]})["y"].tolist() == [[2, 3]]


def test_a_handler_that_yields_streams(load_model):
    model = load_model(spell, name="spell")
    pieces = [one["output"].tolist() for one in model.stream({"text": "abc"})]
    assert pieces == [[b"a"], [b"b"], [b"c"]]
    assert model.infer({"text": "abc"})["output"].tolist() == [b"abc"]
    stream = model.stream({"text": "abc"})
    assert next(stream)["output"].tolist() == [b"a"]
    stream.close()  # the client leaves


def test_a_folder_a_file_and_one_of_several_models(tmp_path, load_model):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "handler.py").write_text("def inference(x): return x * 3\n")
        (tmp_path / name / "model.yaml").write_text("handler: handler.py\nexecutor: process\n")
    assert load_model(tmp_path / "one").infer({"x": [[1.0]]})["output"].item() == 3
    assert load_model(str(tmp_path), model="two").infer({"x": [[1.0]]})["output"].item() == 3
    assert load_model(f"{__file__}:twice").infer([[1.0, 1.0]])["output"].tolist() == [[2, 2]]
    with pytest.raises(ValueError, match="several models \\(one, two\\)"):
        load(tmp_path)
    with pytest.raises(ValueError, match="holds no model three"):
        load(tmp_path, model="three")
    with pytest.raises(ValueError, match="the settings of a path are in its files"):
        load(tmp_path / "one", instances=2)


def test_a_model_that_cannot_be_loaded_says_why():
    class Broken(BaseHandler):
        def initialize(self, context):
            raise LookupError("no such file")

    with pytest.raises(LoadFailed, match="LookupError: no such file"):
        load(Broken)


def test_handlers_written_for_torchserve(tmp_path, load_model):
    for name, text in (("a", "1"), ("b", "2")):
        folder = old_handler(tmp_path / name, text)
        for _ in range(2):
            with load(folder) as model:
                answer = model.infer({"data": [b"xy", b"z"]})
                assert answer["output"].tolist() == [f"{text}:2".encode(), f"{text}:1".encode()]
    assert Path(folder / "shared.py").is_file()


class Sum(BaseHandler):
    def inference(self, x: Float32[2]) -> Float32[2]:
        return self.context.models["twice"].infer({"x": x})["output"] + x


def test_a_handler_that_calls_another_model(tmp_path, load_model):
    model = load_model(Sum, models=[twice])
    assert model.infer([[1.0, 2.0]])["output"].tolist() == [[3, 6]]
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "handler.py").write_text("def inference(x): return x * 4\n")
    model = load_model(Sum, models=[tmp_path])
    assert model.infer([[1.0, 2.0]])["output"].tolist() == [[5, 10]]


def test_the_composition_example(load_model):
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[10:30, 20:44] = (0, 200, 0)
    model = load_model(ROOT / "examples" / "composition", model="pipeline")
    answer = model.infer({"image": picture[np.newaxis]})
    assert [one.tolist() for one in answer.values()] == [[[20, 10, 44, 30]], [b"green"]]


class Times(BaseHandler):
    time = np.int64(5)

    def inference(self, x: Float32[1]) -> Float32[1]:
        self.context.add_time("mine", self.time)
        return x


class AsynchronousTimes(BaseHandler):
    time = np.int64(5)

    async def inference(self, x: Float32[1]) -> Float32[1]:
        self.context.add_time("mine", self.time)
        return x


@pytest.mark.parametrize("handler", [Times, AsynchronousTimes])
@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (1e30, "1e+30"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        (-1, "-1"),
        ("5", "'5'"),
        (True, "True"),
        (None, "None"),
        (1 << 63, str(1 << 63)),
        pytest.param(1 << 20_000, "an int of 20001 bits", id="long"),
    ],
)
def test_a_time_that_is_none_is_named_with_what_is_expected(monkeypatch, handler, time, shown):
    monkeypatch.setattr(handler, "time", time)
    with load(handler) as model, pytest.raises(KsrvError) as raised:
        model.infer([[1.0]])
    assert raised.value.http_status == 500
    told = f"the handler called context.add_time('mine', {shown}); expected nanoseconds as a whole number from 0"
    assert told in raised.value.message


@pytest.mark.parametrize("handler", [Times, AsynchronousTimes])
def test_a_time_is_any_whole_number_of_nanoseconds(handler):
    with load(handler) as model:
        assert model.infer([[1.0]]).timings["mine"] == 5
