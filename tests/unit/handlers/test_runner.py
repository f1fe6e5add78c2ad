"""The runner: from a folder with a model.yaml to answers, times and errors."""

import logging
import textwrap

import numpy as np
import pytest

from ksrv.errors import HandlerFailed, InferenceError
from ksrv.handlers.runner import LoadFailed, Runner
from ksrv.repository.config import load_model_config
from ksrv.request import BatchInputs, BatchRequest, Tensor
from ksrv.source import ModelSource


@pytest.fixture
def runner_of(tmp_path):
    """Make a loaded runner of a handler's source and the lines of a model.yaml."""
    runners = []

    def make(handler, config="", name="m"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "handler.py").write_text(textwrap.dedent(handler))
        (folder / "model.yaml").write_text("handler: handler.py\n" + textwrap.dedent(config))
        source = ModelSource(
            name=name, version="", folder=folder, root=folder, config=load_model_config(folder)
        )
        runner = Runner(source)
        runners.append(runner)
        runner.load()
        return runner

    yield make
    for runner in runners:
        runner.close()


def batch_of(*arrays, explain=False, **named):
    """A batch of one request a row group; arrays are the requests' parts of the input x."""
    tensors, requests, start = {}, [], 0
    for index, array in enumerate(arrays):
        requests.append(BatchRequest(slice(start, start + len(array)), f"id{index}"))
        start += len(array)
    joined = np.concatenate(arrays)
    tensors["x"] = Tensor("x", "FP32", joined.shape, joined)
    for name, array in named.items():
        tensors[name] = Tensor(name, "FP32", array.shape, array)
    return BatchInputs(tensors, start, requests, explain)


def ones(rows):
    return np.ones((rows, 2), np.float32)


def test_inference_alone_is_a_whole_handler(runner_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Double(BaseHandler):
            def inference(self, x):
                return x * 2
        """
    )
    answer = runner.run(batch_of(ones(1), ones(2)))
    assert [tensor.name for tensor in answer.tensors] == ["output"]
    np.testing.assert_array_equal(answer.tensors[0].data, np.full((3, 2), 2, np.float32))
    assert set(answer.timings) == {"preprocess", "inference", "postprocess"}
    assert not answer.failures


def test_several_inputs_are_keywords(runner_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Add(BaseHandler):
            def inference(self, x, y):
                return {"sum": x + y}
        """
    )
    answer = runner.run(batch_of(ones(2), y=ones(2)))
    assert answer.tensors[0].name == "sum"
    assert answer.tensors[0].data.tolist() == [[2, 2], [2, 2]]


def test_a_failed_row_fails_its_request_alone(runner_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Picky(BaseHandler):
            def postprocess(self, y):
                self.context.batch.fail(1, "too dark", 422)
                return y
            def inference(self, x):
                return x
        """
    )
    answer = runner.run(batch_of(ones(1), ones(2), ones(1)))
    assert list(answer.failures) == [1]
    assert answer.failures[1].http_status == 422
    assert answer.failures[1].message == "too dark"
    assert answer.tensors[0].shape == (4, 2)


def test_an_inference_error_fails_the_batch(runner_of):
    runner = runner_of(
        """
        from ksrv import BaseHandler, InferenceError
        class No(BaseHandler):
            def preprocess(self, batch):
                raise InferenceError("no", 409)
        """
    )
    with pytest.raises(InferenceError) as caught:
        runner.run(batch_of(ones(1)))
    assert (caught.value.http_status, caught.value.message) == (409, "no")


def test_another_exception_names_stage_and_type_and_is_logged(runner_of, caplog):
    runner = runner_of(
        """
        from ksrv import BaseHandler
        class Broken(BaseHandler):
            def inference(self, x):
                raise ValueError("secret of the handler")
        """
    )
    with caplog.at_level(logging.ERROR), pytest.raises(HandlerFailed) as caught:
        runner.run(batch_of(ones(1)))
    assert caught.value.http_status == 500
    assert "inference" in caught.value.message
    assert "ValueError" in caught.value.message
    assert "secret" not in caught.value.message
    assert "id0" in caplog.text
    assert "secret of the handler" in caplog.text


def test_a_wrong_number_of_rows_names_both(runner_of):
    runner = runner_of(
        """
        def inference(x):
            return x[:1]
        """
    )
    with pytest.raises(HandlerFailed, match=r"returned 1 rows .* batch of 3 rows"):
        runner.run(batch_of(ones(3)))


def test_a_list_has_one_value_for_each_row(runner_of):
    runner = runner_of(
        """
        def inference(x):
            return ["a", b"b", {"c": [1, 2.5]}]
        """
    )
    tensor = runner.run(batch_of(ones(3))).tensors[0]
    assert (tensor.datatype, tensor.shape) == ("BYTES", (3,))
    assert tensor.data == [b"a", b"b", b'{"c":[1,2.5]}']


def test_models_with_files_of_one_name_do_not_meet(runner_of, tmp_path):
    handler = """
    import net
    def inference(x):
        import late
        return x * net.FACTOR + late.OFFSET
    """
    for name, factor in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(f"FACTOR = {factor}\n")
        (tmp_path / name / "late.py").write_text(f"OFFSET = {factor * 10}\n")
    one, two = runner_of(handler, name="one"), runner_of(handler, name="two")
    assert one.run(batch_of(ones(1))).tensors[0].data.tolist() == [[22, 22]]
    assert two.run(batch_of(ones(1))).tensors[0].data.tolist() == [[33, 33]]


def test_a_failing_import_is_reported_as_itself(runner_of):
    with pytest.raises(LoadFailed, match="ModuleNotFoundError: No module named 'no_such_thing'"):
        runner_of("import no_such_thing\n")
