"""`text_encoder` in a sentence-transformers folder whose network is a .onnx file: the folder's files are its defaults."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from ksrv.handlers.builtin.sentence_folder import folder_of, folder_parameters
from ksrv.testing import LoadFailed, load
from tests.support.model_files.onnx_models import write_graph

WORDS = ["[UNK]", "red", "blue", "car", "find"]
WEIGHTS = np.float32([[0, 0], [1, -5], [2, 3], [4, 0], [8, 8]])
MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
NORMALIZE = {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
SETTINGS = "handler: text_encoder\nmodel: {}\nrole: embedding\n"


def write_folder(folder, pooling, modules=MODULES, at="model.onnx", **files):
    ids = ("INT64", ("rows", "tokens"))
    write_graph(
        folder / at,
        [
            ("Gather", ["weights", "input_ids"], ["found"], {}),
            ("Cast", ["attention_mask"], ["mask"], {"to": 1}),
            ("Unsqueeze", ["mask", "axis"], ["wide"], {}),
            ("Mul", ["found", "wide"], ["hidden"], {}),
        ],
        {"input_ids": ids, "attention_mask": ids},
        {"hidden": ("FP32", ("rows", "tokens", 2))},
        {"weights": WEIGHTS, "axis": np.int64([2])},
    )
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling").mkdir()
    for name, content in {"1_Pooling/config": pooling, "modules": modules, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "model.yaml").write_text(SETTINGS.format(at))
    return folder


def vectors(folder, *texts):
    with load(folder) as model:
        found = model.infer({"text": list(texts)})
        return found["embedding"], found["tokens"].tolist()


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, [1.5, -1]),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, [1, -5]),
        ({"pooling_mode_max_tokens": True}, [2, 3]),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, [2, 3]),
    ],
)
def test_pooling_is_the_folders(tmp_path, pooling, expected):
    found, tokens = vectors(write_folder(tmp_path, pooling), "red blue", "car")
    assert found.tolist() == [expected, [4, 0]]
    assert tokens == [2, 1]


def test_folder_normalizes_cuts_and_lowers_as_its_files_say(tmp_path):
    folder = write_folder(
        tmp_path,
        {"pooling_mode": "mean"},
        [*MODULES, NORMALIZE],
        at="onnx/model.onnx",
        sentence_bert_config={"max_seq_length": 2, "do_lower_case": True},
        config_sentence_transformers={
            "prompts": {"query": "find "},
            "default_prompt_name": "query",
        },
    )
    found, tokens = vectors(folder, " RED blue")
    mean = WEIGHTS[[4, 1]].mean(axis=0)
    assert np.allclose(found[0], mean / np.linalg.norm(mean))
    assert tokens == [2]


def test_parameters_of_model_yaml_win(tmp_path):
    folder = write_folder(tmp_path, {"pooling_mode": "mean"})
    with (folder / "model.yaml").open("a") as file:
        file.write("parameters: {pooling: cls, max_tokens: 1}\n")
    assert vectors(folder, "blue red")[0].tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("pooling", "modules", "said"),
    [
        (
            {"pooling_mode": "weightedmean"},
            MODULES,
            "pools by weightedmean; text_encoder knows one",
        ),
        ({}, MODULES, "pools by nothing"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            MODULES,
            "pools by mean, cls",
        ),
        ({"pooling_mode": "mean", "include_prompt": False}, MODULES, "over all tokens"),
        (
            {"pooling_mode": "mean"},
            [*MODULES, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}],
            "has the module Dense; text_encoder runs Transformer, Pooling and Normalize",
        ),
    ],
)
def test_folder_that_needs_its_package_is_refused(tmp_path, pooling, modules, said):
    with pytest.raises(LoadFailed, match=said):
        load(write_folder(tmp_path, pooling, modules)).__enter__()


def test_damaged_file_is_refused(tmp_path):
    folder = write_folder(tmp_path, {"pooling_mode": "mean"})
    (folder / "modules.json").write_text("[")
    with pytest.raises(LoadFailed, match=r"modules.json cannot be read"):
        load(folder).__enter__()


def test_unknown_length_is_left_to_the_default(tmp_path):
    folder = write_folder(
        tmp_path, {"pooling_mode": "mean"}, tokenizer_config={"model_max_length": 10**30}
    )
    assert "max_tokens" not in folder_parameters(folder)
    assert folder_of(tmp_path / "model.onnx", tmp_path) == tmp_path
    assert folder_of(tmp_path.parent / "x" / "model.onnx", tmp_path) is None
    assert folder_of(None, tmp_path) is None


def test_safetensors_without_class_and_config_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "model.yaml").write_text(SETTINGS.format("model.safetensors"))
    with pytest.raises(Exception, match="holds weights only"):
        load(tmp_path).__enter__()
