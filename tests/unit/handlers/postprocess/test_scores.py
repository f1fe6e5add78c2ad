"""softmax, sigmoid, argmax, top_k, threshold and ctc give what loops over single numbers give."""

import itertools
import math

import numpy as np
import pytest

from ksrv.handlers.postprocess.steps import Steps
from ksrv.model.config import ModelSource
from ksrv.model.fault import Fault
from ksrv.model.postprocess import TopK
from ksrv.model.spec import TensorSpec
from ksrv.repository.model_yaml import load_model_config
from ksrv.testing import load

RANDOM = np.random.default_rng(7)
SCORES = RANDOM.normal(0, 4, (3, 6)).astype(np.float32)
LABELS = ["ant", "bee", "cat", "dog", "eel", "fox"]


def softmax_of(row):
    powers = [math.exp(one - max(row)) for one in row]
    return [one / sum(powers) for one in powers]


def test_softmax_replaces_the_scores(answer):
    found = answer("postprocess: [{softmax: {}}]", s=SCORES)
    assert list(found) == ["s"]
    np.testing.assert_allclose(found["s"], [softmax_of(row) for row in SCORES.tolist()], 1e-5)


@pytest.mark.parametrize("axis", [1, -2])
def test_softmax_has_an_axis_and_a_name(answer, axis):
    scores = RANDOM.normal(size=(2, 3, 2)).astype(np.float32)
    found = answer(f"postprocess: [{{softmax: {{axis: {axis}, to: p}}}}]", s=scores)
    for row, column in itertools.product(range(2), range(2)):
        want = softmax_of(scores[row, :, column].tolist())
        np.testing.assert_allclose(found["p"][row, :, column], want, 1e-5)


def test_sigmoid_of_large_scores_does_not_overflow(answer):
    scores = np.float32([[0, -1, 2.5, 1000, -1000]])
    found = answer("postprocess: [{sigmoid: {}}]", s=scores)["s"]
    want = [1 / (1 + math.exp(-one)) if one > -700 else 0 for one in scores[0].tolist()]
    np.testing.assert_allclose(found[0], want, 1e-6)


def test_sigmoid_of_one_score_for_each_row(served):
    with served("postprocess: [{sigmoid: {}}]", s=np.float32([0, 1])) as (model, inputs):
        assert [one.shape for one in model.spec.outputs] == [(-1,)]
        np.testing.assert_allclose(model.infer(inputs)["s"], [0.5, 1 / (1 + math.exp(-1))], 1e-6)


def test_argmax_gives_class_and_score(answer):
    found = answer("postprocess: [{argmax: {axis: 1, to: best}}]", s=SCORES)
    assert list(found) == ["best_class", "best_score"]
    assert found["best_class"].dtype == np.int32
    assert found["best_class"].tolist() == [max(range(6), key=row.__getitem__) for row in SCORES]
    assert found["best_score"].tolist() == [max(row) for row in SCORES.tolist()]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_top_k_is_in_falling_order_with_labels(answer, kind):
    scores = SCORES.astype(kind)
    found = answer("postprocess: [{softmax: {}}, {top_k: {k: 2}}]", LABELS, s=scores)
    assert list(found) == ["class", "score", "label"]
    for row, classes, values, labels in zip(scores.tolist(), *found.values(), strict=True):
        order = sorted(range(6), key=lambda one, row=row: -row[one])[:2]
        assert classes.tolist() == order
        assert [one.decode() for one in labels] == [LABELS[one] for one in order]
        np.testing.assert_allclose(values, [softmax_of(row)[one] for one in order], 1e-3)


def test_top_k_of_fewer_classes_answers_with_all(answer):
    assert answer("postprocess: [{top_k: {k: 99}}]", s=SCORES)["class"].shape == (3, 6)


def test_threshold_keeps_entries_of_several_outputs_in_order(answer):
    scores = np.float32([[0.9, 0.1, 0.5], [0.2, np.nan, 0.3]])
    kinds = np.int64([[4, 5, 6], [7, 8, 9]])
    boxes = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = answer("postprocess: [{threshold: {of: s, also: [k, b]}}]", s=scores, k=kinds, b=boxes)
    assert found["s"].tolist() == [[np.float32(0.9), 0.5], [0, 0]]
    assert found["k"].tolist() == [[4, 6], [-1, -1]]
    assert found["b"].tolist() == [[boxes[0, 0].tolist(), boxes[0, 2].tolist()], [[0] * 4] * 2]
    assert found["count"].tolist() == [2, 0]


def test_threshold_after_top_k_answers_several_labels(answer):
    found = answer(
        "postprocess: [{sigmoid: {}}, {top_k: {k: 6}},"
        " {threshold: {of: score, also: [class, label], least: 0.5}}]",
        LABELS,
        s=np.float32([[3, -1, 2, -5, -5, -5], [-9] * 6]),
    )
    assert found["label"].tolist() == [[b"ant", b"cat"], [b"", b""]]
    assert found["class"].tolist() == [[0, 2], [-1, -1]]


def loop_ctc(rows, alphabet, blank):
    """Decode as itertools does it: first the repetitions, then the blanks."""
    symbols = list(alphabet)
    symbols.insert(blank, "")
    for row in rows:
        kept = [(k, next(g)[1]) for k, g in itertools.groupby(row, lambda one: one[0])]
        chosen = [(symbols[k], score) for k, score in kept if k != blank]
        yield "".join(one for one, _ in chosen), chosen


@pytest.mark.parametrize("blank", [0, -1, 2])
def test_ctc_equals_a_loop(answer, blank):
    size = 6
    scores = RANDOM.random((5, 30, size)).astype(np.float32)
    scores[..., blank] += 0.3
    scores[4] = np.eye(size)[blank]  # an empty text
    found = answer(f"postprocess: [{{ctc: {{alphabet: 'aé中 z', blank: {blank}}}}}]", s=scores)
    best = [[(int(step.argmax()), float(step.max())) for step in row] for row in scores]
    decoded = list(loop_ctc(best, "aé中 z", blank % size))
    assert [one.decode() for one in found["text"]] == [text for text, _ in decoded]
    for value, (_, chosen) in zip(found["score"].tolist(), decoded, strict=True):
        assert value == pytest.approx(np.mean([one for _, one in chosen]) if chosen else 0)
    assert found["text"][4] == b""


def test_alphabet_is_a_file_whose_last_line_may_be_a_blank(answer, tmp_path):
    (tmp_path / "keys.txt").write_text("h\nch\n \n")
    scores = np.eye(4, dtype=np.float32)[[[2, 2, 0, 2, 3, 1]]]
    found = answer("postprocess: [{ctc: {alphabet: keys.txt}}]", s=scores)
    assert found["text"].tolist() == [b"chch h"]


def test_only_the_listed_outputs_are_answered(answer):
    steps = "postprocess: [{softmax: {to: p}}, {top_k: {of: p, k: 1}}]"
    assert list(answer(f"{steps}\noutputs: [p, class]", s=SCORES)) == ["p", "class"]
    entry = "{name: score, datatype: FP32, shape: [-1, 1]}"
    assert list(answer(f"{steps}\noutputs: [{entry}]", s=SCORES)) == ["score"]


def test_outputs_that_no_step_takes_are_answered_unchanged(answer):
    found = answer("postprocess: [{top_k: {of: s, k: 1}}]", s=SCORES, t=SCORES[:, :2])
    assert list(found) == ["t", "class", "score"]
    np.testing.assert_array_equal(found["t"], SCORES[:, :2])


def test_declared_outputs_have_the_datatypes_and_shapes_of_the_steps(served):
    with served("postprocess: [{top_k: {k: 3}}]", LABELS, s=SCORES) as (model, _):
        assert [(one.name, one.datatype, one.shape) for one in model.spec.outputs] == [
            ("class", "INT64", (-1, 3)),
            ("score", "FP32", (-1, 3)),
            ("label", "BYTES", (-1, 3)),
        ]


def test_outputs_without_a_rank_are_checked_when_the_model_answers():
    steps = Steps([TopK(k=2)], None, "m")
    assert steps.declare([TensorSpec("s", "FP32", ())]) == ()
    assert steps.run({"s": SCORES})["class"].shape == (3, 2)
    with pytest.raises(Fault, match=r"takes the shape \[-1, \(1, 1000000\)\], and 's' has \[6\]"):
        steps.run({"s": SCORES[0]})


def test_softmax_of_probabilities_is_warned_about(answer, caplog):
    answer("warmup: false\npostprocess: [{softmax: {}}]", s=SCORES)
    assert "look like probabilities" not in caplog.text
    answer("warmup: false\npostprocess: [{softmax: {}}]", s=np.float32([[0.25, 0.75]]))
    assert caplog.text.count("leave the step out") == 1


def test_torch_tensors_of_16_bits_are_ranked_as_float32(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.bfloat16(), (x * 2).half()\n"
    )
    (tmp_path / "model.yaml").write_text(
        "class: net.py:Net\ninputs: [{name: x, datatype: FP32, shape: [-1, 6]}]\npostprocess:\n"
        "  - softmax: {of: output_0, to: p}\n  - top_k: {of: p, k: 2}\n"
        "  - argmax: {of: output_1, to: twice}\n"
    )
    with load(tmp_path) as model:
        found = model.infer({"x": SCORES})
    probabilities = torch.from_numpy(SCORES).bfloat16().float().softmax(1)
    np.testing.assert_allclose(found["score"], probabilities.topk(2).values, 1e-5)
    assert found["class"].tolist() == probabilities.topk(2).indices.tolist()
    assert found["twice_class"].tolist() == SCORES.argmax(1).tolist()


def test_steps_reach_a_handler_process(tmp_path):
    (tmp_path / "handler.py").write_text("def inference(x):\n    return {'q': x}\n")
    np.save(tmp_path / "anchors.npy", np.zeros((5, 4)))
    (tmp_path / "keys.txt").write_text("a\n \n")
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\npostprocess:\n  - ctc: {alphabet: keys.txt, blank: -1}\n"
        "  - nms: {of: a, scores: b, format: ssd, anchors: anchors.npy}\n"
        "  - mask: {threshold: 0.5}\n"
    )
    config = load_model_config(tmp_path)
    source = ModelSource(name="m", version="", folder=tmp_path, root=tmp_path, config=config)
    assert ModelSource.from_json(source.to_json()).config == config
    [(_, step)] = config.postprocess[0].given
    assert step.alphabet == ("a", " ")
