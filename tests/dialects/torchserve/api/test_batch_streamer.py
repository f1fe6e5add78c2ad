"""`TextIteratorStreamerBatch`: with a stand-in for transformers, and with the real one where it is."""

import sys
from queue import Queue
from types import ModuleType

import pytest
import torch

from ksrv.dialects.torchserve.api.handlers.batch_streamer import TextIteratorStreamerBatch

WORDS = ["", "red ", "green ", "blue "]


class Streamer:
    """Decodes each token to a word; what transformers' own class does for one row, simplified."""

    def __init__(self, tokenizer, skip_prompt=False, timeout=None, **decode_kwargs):
        assert decode_kwargs == {"skip_special_tokens": True}
        self.words = tokenizer
        self.waiting = Queue()
        self.timeout = timeout
        self.prompt = skip_prompt

    def put(self, value):
        value = value.reshape(-1)
        if self.prompt:
            self.prompt = False
        else:
            self.waiting.put("".join(self.words[int(token)] for token in value))

    def end(self):
        self.waiting.put(None)

    def __next__(self):
        text = self.waiting.get(timeout=self.timeout)
        if text is None:
            raise StopIteration
        return text


@pytest.fixture
def streamer(monkeypatch):
    module = ModuleType("transformers")
    module.TextIteratorStreamer = Streamer
    monkeypatch.setitem(sys.modules, "transformers", module)

    def make(size, **options):
        return TextIteratorStreamerBatch(WORDS, size, skip_special_tokens=True, **options)

    return make


def test_each_step_has_the_text_of_every_row(streamer):
    made = streamer(2)
    made.put(torch.tensor([[1, 1], [2, 2]]))
    made.put(torch.tensor([3, 1]))
    made.end()
    assert list(made) == [
        [{"text": "red red "}, {"text": "green green "}],
        [{"text": "blue "}, {"text": "red "}],
    ]


def test_another_number_of_rows_is_an_error_that_names_both(streamer):
    with pytest.raises(ValueError, match=r"3 rows \(shape \(3, 1\)\).*batch of 2"):
        streamer(2).put(torch.zeros(3, 1))


def test_without_transformers_the_error_says_what_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="needs transformers: pip install transformers"):
        TextIteratorStreamerBatch(WORDS, 1)


def test_the_import_of_a_handler_does_not_import_transformers(ts_runner):
    before = "transformers" in sys.modules
    ts_runner(
        """
        from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
        def handle(data, context):
            return data
        """
    )
    assert ("transformers" in sys.modules) == before
