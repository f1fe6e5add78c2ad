import numpy as np
import pytest
from moods import Moods, lengths

from ksrv.testing import KsrvError, batch, context, load

pytest_plugins = ["ksrv.testing.fixtures"]


def test_moods_of_texts(load_model):
    answer = load_model(Moods).infer({"text": ["A happy day", "rain again", "a text"]})
    assert answer["mood"].tolist() == [b"good", b"bad", b"neutral"]
    assert answer["score"].tolist() == [1, -1, 0]


def test_a_text_without_words_fails_its_request_alone():
    with load(Moods) as model:
        good, bad = model.infer_many([{"text": "sun"}, {"text": " "}])
        assert good["mood"].tolist() == [b"good"]
        assert (bad.http_status, bad.message) == (422, "the text has no words")
        with pytest.raises(KsrvError, match="no words"):
            model.infer({"text": " "})


def test_one_stage_by_itself():
    handler = Moods()
    given = batch({"text": ["sun"]})
    handler.initialize(context(parameters={"good": ["sun"], "bad": []}, batch=given))
    assert handler.inference(given["text"], given)["score"].tolist() == [1]


def test_lengths(load_model):
    assert np.array_equal(load_model(lengths).infer({"text": ["", "abc"]})["output"], [0, 3])
