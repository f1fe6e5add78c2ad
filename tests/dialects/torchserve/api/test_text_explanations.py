"""Explanations of TorchServe's text_classifier, against what integrated gradients of a linear model are."""

import io
import json

import numpy as np
import torch
from torch import nn

from ksrv.request import ExecutorInputs, RequestPart, Tensor

HANDLER = """
from ts.torch_handler.text_classifier import TextClassifier

class Own(TextClassifier):
    pass
"""
MODEL = """
from torch import nn

class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.{layer} = nn.EmbeddingBag(12, 3)
        self.through = nn.Linear(3, 2)

    def forward(self, text, offsets):
        return self.through(self.{layer}(text, offsets))
"""
WORDS = ["<unk>", "very", "good", "bad", "very good", "good bad"]
TEXTS = [b"Very <b>good</b>, bad!", b"bad"]
TOKENS = [[1, 2, 3, 4, 5], [3]]  # the words, then their pairs


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(12, 3)
        self.through = nn.Linear(3, 2)

    def forward(self, text, offsets):
        return self.through(self.embedding(text, offsets))


def weights(layer):
    rng = np.random.default_rng(5)
    shapes = {f"{layer}.weight": (12, 3), "through.weight": (2, 3), "through.bias": (2,)}
    return {
        name: torch.tensor(rng.normal(size=shape), dtype=torch.float32)
        for name, shape in shapes.items()
    }


def classifier(ts_runner, layer="embedding"):
    file = io.BytesIO()
    torch.save(weights(layer), file)
    files = {
        "net.py": MODEL.format(layer=layer).encode(),
        "net.pth": file.getvalue(),
        "source_vocab.json": json.dumps({word: n for n, word in enumerate(WORDS)}).encode(),
    }
    return ts_runner(HANDLER, "model: net.pth\nclass: net.py:Sentiment\n", files)


def explain(runner):
    requests = [RequestPart(slice(row, row + 1), f"id{row}") for row in range(len(TEXTS))]
    tensor = Tensor("data", "BYTES", (len(TEXTS),), list(TEXTS))
    return runner.run(ExecutorInputs({"data": tensor}, len(TEXTS), requests, True))


def test_texts_are_explained_by_their_embedding(ts_runner):
    """Of a linear model the integral is exact: the difference to token 0, times the class's weights."""
    outcome = explain(classifier(ts_runner))
    assert not outcome.failures, outcome.failures
    explained = [json.loads(element) for element in outcome.tensors[0].data]
    assert [one["words"] for one in explained] == [["very", "good", "bad"], ["bad"]]
    embedding, through, _ = (array.numpy() for array in weights("embedding").values())
    for one, tokens in zip(explained, TOKENS, strict=True):
        added = (embedding[tokens].mean(0) - embedding[0]) * through[0]
        np.testing.assert_allclose(
            one["importances"], [np.exp(added) / np.exp(added).sum()], atol=1e-6
        )


def test_a_model_without_the_embedding_is_refused(ts_runner, caplog):
    outcome = explain(classifier(ts_runner, layer="words"))
    assert sorted(outcome.failures) == [0, 1]
    assert "the model has no module `embedding`" in caplog.text


def test_a_scripted_model_is_refused_by_what_it_is(ts_runner, caplog):
    file = io.BytesIO()
    model = Scripted().eval()
    torch.jit.save(torch.jit.trace(model, (torch.tensor([1, 2]), torch.tensor([0]))), file)
    vocabulary = json.dumps({word: n for n, word in enumerate(WORDS)}).encode()
    files = {"net.pt": file.getvalue(), "source_vocab.json": vocabulary}
    outcome = explain(ts_runner(HANDLER, "model: net.pt\n", files))
    assert sorted(outcome.failures) == [0, 1]
    assert "explanations of texts need an eager model" in caplog.text
