"""`TextIteratorStreamerBatch`: with a stand-in for transformers, and with the real one where it is."""

import sys
import threading
from queue import Empty, Queue
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
    """Make a streamer on the stand-in."""
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


def test_it_serves_one_generation_after_the_other(streamer):
    made = streamer(1)
    for token in (1, 2):
        made.put(torch.tensor([token]))
        made.end()
        assert list(made) == [[{"text": WORDS[token]}]]


def test_prompts_can_be_left_out_and_waiting_ends(streamer):
    made = streamer(1, skip_prompt=True, timeout=0.001)
    made.put(torch.tensor([[1]]))
    made.put(torch.tensor([2]))
    assert next(made) == [{"text": "green "}]
    with pytest.raises(Empty):
        next(made)


def test_another_number_of_rows_is_an_error_that_names_both(streamer):
    with pytest.raises(ValueError, match=r"3 rows \(shape \(3, 1\)\).*batch of 2"):
        streamer(2).put(torch.zeros(3, 1))


def test_a_batch_of_nothing_ends_at_once(streamer):
    assert list(streamer(0)) == []


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


def test_a_real_generation_of_transformers():
    """A language model with random weights and eight words streams what it returns."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: token for token, word in enumerate(["_", "a", "b", "c", "d", "e", "f", "g"])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="_"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="_")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    prompts = torch.tensor([[1, 2], [3, 4]])
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(prompts)
    streamer = TextIteratorStreamerBatch(tokenizer, 2, skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=model.generate, args=(prompts,), kwargs={**options, "streamer": streamer}
    )
    thread.start()
    steps = list(streamer)
    thread.join()
    whole = tokenizer.batch_decode(model.generate(prompts, **options)[:, 2:])
    assert ["".join(step[row]["text"] for step in steps) for row in range(2)] == whole
    assert len(steps) > 1
