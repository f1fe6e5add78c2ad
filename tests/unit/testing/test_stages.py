"""`ksrv.testing.batch` and `context`: tests of a single stage of a handler."""

import numpy as np
import pytest

from ksrv import BaseHandler
from ksrv.testing import batch, context


class Cats(BaseHandler):
    """Fails rows without a cat."""

    def postprocess(self, outputs):
        for row, likely in enumerate(outputs):
            if likely < self.context.parameters["least"]:
                self.context.batch.fail(row, f"no {self.context.labels[0]}", 422)
                self.context.metrics.counter("unseen", label=self.context.labels[0])
        return {"cat": outputs}


def test_a_stage_is_called_with_a_batch_and_a_context():
    handler = Cats()
    given = batch({"x": np.zeros((3, 1), np.float32)}, rows=[1, 2])
    handler.context = context(parameters={"least": 0.5}, labels=["cat"], batch=given)
    assert handler.postprocess(np.array([0.9, 0.1, 0.7]))["cat"].shape == (3,)
    assert {index: error.http_status for index, error in given.failures.items()} == {1: 422}
    [record] = handler.context.reported
    assert (record.name, record.value) == ("unseen", 1.0)
    assert ("label", "cat") in record.labels


def test_a_batch_has_requests_with_what_the_test_gives():
    given = batch(
        {"text": ["a", b"b"], "n": np.arange(2)},
        rows=[1, 1],
        ids=["one"],
        parameters={"k": 1},
        headers={"who": "me"},
        explain=True,
    )
    assert given["text"].tolist() == [b"a", b"b"]
    assert (given.datatype("text"), given.datatype("n"), given.rows) == ("BYTES", "INT64", 2)
    first, second = given.requests
    assert (first.id, second.id, second.slice) == ("one", "", slice(1, 2))
    assert (first.parameters, first.headers, given.explain) == ({"k": 1}, {"who": "me"}, True)


def test_a_context_knows_the_models_folder(tmp_path):
    (tmp_path / "vocabulary.txt").write_text("cat")
    made = context(folder=tmp_path, name="cats", version="3")
    assert (made.model_name, made.model_version, made.device) == ("cats", "3", "cpu")
    assert made.file("vocabulary.txt").read_text() == "cat"
    assert made.batch is None


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ({"a": [[1]], "b": [[1], [2]]}, {}, "different numbers of rows: {'a': 1, 'b': 2}"),
        ({"a": [[1.0], [2.0]]}, {"rows": [1]}, "the requests have 1 rows, the inputs 2"),
        ({"a": np.zeros((1, 1), complex)}, {}, "an array of complex128, which has no datatype"),
    ],
)
def test_a_batch_that_cannot_be_says_why(inputs, options, text):
    with pytest.raises(ValueError, match=text):
        batch(inputs, **options)
