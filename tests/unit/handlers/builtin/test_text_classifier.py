"""The built-in text classifier: cleaning, numbers, whole batches."""

import json

import numpy as np
import pytest

from ksrv.handlers.builtin.tokenizer import clean_words, read_vocabulary
from ksrv.handlers.runner import HandlerLoadError
from ksrv.request import ExecutorInputs, RequestPart, Tensor

torch = pytest.importorskip("torch")

VOCABULARY = {"<unk>": 0, "good": 1, "bad": 2, "very good": 3, "not": 4}
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(5, 2, mode="sum")

    def forward(self, text, offsets):
        return self.embedding(text, offsets)
"""
WEIGHT = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0], [0.5, 0.0]]


class Vocabulary:
    """The vocabulary object of older files, which is not loaded."""


@pytest.fixture
def serve(tmp_path, loaded):
    def make(config="", vocabulary="source_vocab.json", content=None):
        (tmp_path / "net.py").write_text(NET)
        torch.save({"embedding.weight": torch.tensor(WEIGHT)}, tmp_path / "w.pt")
        (tmp_path / "names.json").write_text('{"0": "sad", "1": "glad"}')
        if vocabulary.endswith(".json"):
            (tmp_path / vocabulary).write_text(json.dumps(content or VOCABULARY))
        elif vocabulary:
            torch.save(content or VOCABULARY, tmp_path / vocabulary)
        (tmp_path / "model.yaml").write_text(
            "handler: text_classifier\nmodel: w.pt\nclass: net.py:Net\nlabels: names.json\n"
            + config
        )
        runner = loaded(tmp_path)
        return runner, runner.spec

    return make


def run(runner, *texts):
    requests = [RequestPart(slice(i, i + 1), f"r{i}") for i in range(len(texts))]
    tensor = Tensor("text", "BYTES", (len(texts),), list(texts))
    answer = runner.run(ExecutorInputs({"text": tensor}, len(texts), requests))
    return {one.name: one.data for one in answer.tensors}, answer.failures


def expected(*words):
    scores = np.sum([[0.0, 0.0], *(WEIGHT[VOCABULARY[word]] for word in words)], axis=0)
    return np.exp(scores) / np.exp(scores).sum()


def test_every_text_of_a_batch_is_classified(serve):
    runner, spec = serve()
    assert [(one.name, one.datatype, one.shape) for one in spec.inputs] == [
        ("text", "BYTES", (-1,))
    ]
    outputs, failures = run(runner, b"<b>Very  GOOD!</b>", "b\u00e1d &amp; b\u00e0d".encode(), b"")
    assert not failures
    rows = [json.loads(text) for text in outputs["output"]]
    want = [expected("good", "very good"), expected("bad", "bad"), expected()]
    for row, probabilities in zip(rows, want, strict=True):
        assert list(row) == ["sad", "glad"]
        np.testing.assert_allclose(list(row.values()), probabilities, atol=1e-6)
    assert outputs["label"][:2] == [b"glad", b"sad"]
    assert outputs["class"][:2].tolist() == [1, 0]
    assert outputs["probability"][0] == pytest.approx(want[0][1], abs=1e-6)


def test_text_that_is_not_utf8_fails_only_its_request(serve):
    runner, _ = serve()
    outputs, failures = run(runner, b"good", b"\xff\xfe", b"bad")
    assert list(failures) == [1]
    assert failures[1].http_status == 400
    assert outputs["label"][0] == b"glad"
    assert outputs["label"][2] == b"sad"


def test_runs_of_words_are_a_parameter(serve):
    runner, _ = serve("parameters: {ngrams: 1}")
    outputs, _ = run(runner, b"very good")
    np.testing.assert_allclose(
        list(json.loads(outputs["output"][0]).values()), expected("good"), atol=1e-6
    )


@pytest.mark.parametrize("name", ["words.json", "words.pt"])
def test_the_vocabulary_is_a_parameter(serve, name):
    runner, _ = serve(f"parameters: {{vocabulary: {name}}}", name)
    assert run(runner, b"good")[0]["label"] == [b"glad"]


def test_a_list_of_words_is_a_vocabulary(serve):
    runner, _ = serve(content=["<unk>", "good", "bad", "very good", "not"])
    assert run(runner, b"bad")[0]["label"] == [b"sad"]


@pytest.mark.parametrize(
    ("config", "vocabulary", "words"),
    [
        ("", "", "needs a vocabulary"),
        ("parameters: {vocabulary: none.json}", "source_vocab.json", "none.json"),
        ("parameters: {vocabulary: ../x.json}", "source_vocab.json", "x.json"),
        ("parameters: {ngrams: 0}", "source_vocab.json", "ngrams"),
    ],
)
def test_missing_files_fail_the_load(serve, tmp_path, config, vocabulary, words):
    (tmp_path.parent / "x.json").write_text("{}")
    with pytest.raises(HandlerLoadError, match=words):
        serve(config, vocabulary)


def test_a_vocabulary_of_objects_is_refused(tmp_path):
    torch.save(Vocabulary(), tmp_path / "v.pt")
    with pytest.raises(ValueError, match="more than a plain dict"):
        read_vocabulary(tmp_path / "v.pt")
    for text in ("3", '{"a": "b"}', "{"):
        (tmp_path / "v.json").write_text(text)
        with pytest.raises(ValueError, match=r"vocabulary v\.json"):
            read_vocabulary(tmp_path / "v.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I can't, it's <br/>FINE", ["i", "cannot", "it", "is", "fine"]),
        ("caf\u00e9 &lt;b&gt; na\u00efve", ["cafe", "b", "naive"]),
        ("rock'n'roll; o'neil's", ["rocknroll", "oneils"]),
        ("He'll shouldn't've; who'd", ["he", "will", "should", "notve", "whod"]),
        ("ain't 'cause where'd", ["as", "not", "ecause", "where", "did"]),
        ("sustain't her'she's", ["sustas", "not", "hershe", "is"]),
        ("", []),
    ],
)
def test_text_is_cleaned_as_in_torchserve(text, words):
    assert clean_words(text) == words
