"""Seven models of transformers in one repository, tiny and with random weights, and what they answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    GPT2Config,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

from tests.support.models import write_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(45)))
TEXT = "w3 w14 w15 w9"

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
BERT = {**SMALL, "vocab_size": len(WORDS), "num_labels": 3}
VIT = {**SMALL, "image_size": 16, "patch_size": 8, "num_labels": 4}

TEXTS = "inputs: [{name: text, datatype: BYTES, shape: [-1]}]\nwarmup: [sample.json]\n"
SAMPLE = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["w1 w2"]}]}'

CLASSIFY = """
from pathlib import Path

from ksrv import BaseHandler
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Classify(BaseHandler):
    def initialize(self, context):
        folder = Path(context.model_dir) / "weights"
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def preprocess(self, batch):
        return [text.decode() for text in batch["text"]]

    def inference(self, texts):
        return {"y": self.model(**self.tokenizer(texts, padding=True, return_tensors="pt")).logits}
"""

LAZY = """
from pathlib import Path

from ksrv import BaseHandler


class Lazy(BaseHandler):
    def initialize(self, context):
        from transformers import {auto}, AutoTokenizer

        folder = Path(context.model_dir) / "weights"
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = {auto}.from_pretrained(folder).eval()

    def preprocess(self, batch):
        return [text.decode() for text in batch["text"]]

    def inference(self, texts):
        outputs = self.model(**self.tokenizer(texts, padding=True, return_tensors="pt"))
        return {{"y": outputs[0]}}
"""

GENERATE = """
from pathlib import Path

import torch
from ksrv import BaseHandler
from transformers import AutoModelForCausalLM


class Generate(BaseHandler):
    def initialize(self, context):
        self.model = AutoModelForCausalLM.from_pretrained(Path(context.model_dir) / "weights").eval()

    def inference(self, ids):
        ids = torch.as_tensor(ids)
        made = self.model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        return {"y": made[:, ids.shape[1]:]}
"""

PICTURE = """
from pathlib import Path

import torch
from transformers import ViTForImageClassification

model = ViTForImageClassification.from_pretrained(Path(__file__).parent / "weights").eval()


def inference(pixels):
    return {"y": model(torch.as_tensor(pixels)).logits}
"""

NET = f"""
import torch
from transformers import BertConfig, BertModel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(**{BERT}))

    def forward(self, ids):
        return self.bert(ids).pooler_output
"""


@dataclass
class Question:
    """A request to a model, and the values of its only output."""

    inputs: Mapping[str, Any]
    answer: Any


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of fifty words."""
    words = Tokenizer(
        WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]"
    )


def write(root: Path) -> dict[str, Question]:
    """Write the repository, and return a question to each model."""
    torch.manual_seed(5)
    texts = tokenizer()
    tokens = texts([TEXT], return_tensors="pt")
    asked = {}
    ids = torch.arange(6, 12)[None]
    pixels = torch.rand(1, 3, 16, 16)
    bert = BertConfig(**BERT)
    kinds = {
        "classify": AutoModelForSequenceClassification,
        "embed": AutoModel,
        "mask": AutoModelForMaskedLM,
        "tag": AutoModelForTokenClassification,
    }
    with torch.inference_mode():
        for name, auto in kinds.items():
            model = auto.from_config(bert).eval()
            handler = CLASSIFY if name == "classify" else LAZY.format(auto=auto.__name__)
            folder = write_model(root, name, handler, TEXTS)
            (folder / "sample.json").write_text(SAMPLE)
            model.save_pretrained(folder / "weights")
            texts.save_pretrained(folder / "weights")
            asked[name] = Question({"text": [TEXT]}, model(**tokens)[0].numpy())

        gpt = AutoModelForCausalLM.from_config(
            GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        ).eval()
        folder = write_model(
            root, "generate", GENERATE, "inputs: [{name: ids, datatype: INT64, shape: [-1, 6]}]\n"
        )
        gpt.save_pretrained(folder / "weights")
        made = gpt.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        asked["generate"] = Question({"ids": ids.numpy()}, made[:, 6:].numpy())

        vit = ViTForImageClassification(ViTConfig(**VIT)).eval()
        folder = write_model(
            root,
            "picture",
            PICTURE,
            "inputs: [{name: pixels, datatype: FP32, shape: [-1, 3, 16, 16]}]\n",
        )
        vit.save_pretrained(folder / "weights")
        asked["picture"] = Question({"pixels": pixels.numpy()}, vit(pixels).logits.numpy())

        names: dict[str, Any] = {}
        exec(NET, names)
        net = names["Net"]().eval()
        folder = root / "net"
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(NET)
        (folder / "model.yaml").write_text(
            "class: net.py:Net\nmodel: net.safetensors\n"
            "inputs: [{name: ids, datatype: INT64, shape: [-1, 6]}]\n"
        )
        save_file(net.state_dict(), folder / "net.safetensors")
        asked["net"] = Question({"ids": ids.numpy()}, net(ids).numpy())
    return asked
