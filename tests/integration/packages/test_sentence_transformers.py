"""Folders that sentence-transformers writes, served by `text_encoder`: the vectors and scores are the package's."""

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="`make test-packages` installs it")

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from ksrv.client import Client
from ksrv.testing import LoadFailed, Server, load

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["a", "red", "car", "the", "sky", "is", "blue", "and", "green", "dog"],
]
TEXTS = ["a red car", "The sky is blue and green", "dog", "a red " * 40]
SETTINGS = (
    "handler: text_encoder\nmodel: model.safetensors\nbatching: {{max_batch_size: 8}}\nrole: {}\n"
)
CONFIG = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def write_network(folder, kind, **more):
    torch.manual_seed(3)
    kind(BertConfig(**CONFIG, **more)).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=32,
        **{f"{name}_token": value for name, value in names.items()},
    ).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("pooling", "normalized"), [("mean", True), ("cls", False), ("max", True), ("lasttoken", False)]
)
def test_vectors_are_the_packages(tmp_path, pooling, normalized):
    network = models.Transformer(write_network(tmp_path / "n", BertModel), max_seq_length=16)
    modules = [network, models.Pooling(16, pooling_mode=pooling)]
    modules += [models.Normalize()] if normalized else []
    package = SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts={"query": "the sky "},
        default_prompt_name="query" if normalized else None,
    )
    folder = tmp_path / "models" / "encoder"
    package.save(str(folder))
    (folder / "model.yaml").write_text(SETTINGS.format("embedding"))
    wanted = package.encode(TEXTS)
    with Server(folder) as server, Client(server.http) as client:
        found = client.infer("encoder", {"text": TEXTS})["embedding"]
        alone = [client.infer("encoder", {"text": [one]})["embedding"][0] for one in TEXTS]
    assert np.allclose(found, wanted, atol=1e-6)
    assert np.allclose(alone, wanted, atol=1e-6)


def test_scores_of_a_cross_encoder_are_the_packages(tmp_path):
    folder = tmp_path / "reranker"
    package = CrossEncoder(
        write_network(folder, BertForSequenceClassification, num_labels=1), device="cpu"
    )
    (folder / "model.yaml").write_text(SETTINGS.format("rerank"))
    pairs = [("a red car", text) for text in TEXTS[:3]]
    with load(folder) as model:
        given = {"query": [one for one, _ in pairs], "text": [two for _, two in pairs]}
        found = model.infer(given)["score"]
    assert np.allclose(found, package.predict(pairs), atol=1e-6)


def test_weights_that_are_not_all_there_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    write_network(tmp_path, BertForSequenceClassification, num_labels=1)
    (tmp_path / "model.yaml").write_text(SETTINGS.format("rerank"))
    state = load_file(tmp_path / "model.safetensors")
    del state["classifier.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadFailed, match="lacks weights of BertForSequenceClassification: classif"):
        load(tmp_path).__enter__()
    (tmp_path / "config.json").write_text(
        '{"architectures": ["NoSuchModel"], "model_type": "bert"}'
    )
    with pytest.raises(LoadFailed, match="cannot be loaded by transformers: "):
        load(tmp_path).__enter__()
