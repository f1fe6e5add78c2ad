"""Every key of `postprocess:` refuses wrong values, and steps refuse outputs that do not fit, when the model is loaded."""

import re

import numpy as np
import pytest

from ksrv.repository.layout import RepositoryError
from ksrv.testing import LoadFailed, load

S = np.zeros((1, 3), np.float32)  # [rows, classes]
B = np.zeros((1, 5, 4), np.float32)  # boxes
Q = np.zeros((1, 5, 3), np.float32)  # scores of boxes
I = np.zeros((1, 5), np.int64)  # noqa: E741  classes of boxes
NMS = "nms: {of: b, scores: q"

KEYS = [
    ("{step: softmax}", "postprocess[0].step: unknown key"),
    ("softmax", "postprocess[0]: expected keys and values, found 'softmax'"),
    ("{}", "postprocess[0]: expected one name with keys, such as softmax: {}, found none"),
    ("{softmax: }", "postprocess[0]: expected one name with keys, such as softmax: {}, found none"),
    ("{softmax: {}, sigmoid: {}}", "postprocess[0]: expected one name with keys, such as softmax: {}, found softmax, sigmoid"),
    ("{softmax: true}", "postprocess[0].softmax: expected keys and values, found true"),
    ("{softmax: {axis: 0}}", "postprocess[0].softmax.axis: 0 counts the rows"),
    ("{softmax: {axis: 99}}", "postprocess[0].softmax.axis: expected a whole number from -31 to 31, found 99"),
    ("{softmax: {axis: one}}", "postprocess[0].softmax.axis: expected a whole number"),
    ("{softmax: {of: 3}}", "postprocess[0].softmax.of: expected a text, found 3"),
    ("{softmax: {k: 3}}", "postprocess[0].softmax.k: unknown key"),
    ("{sigmoid: {axis: 1}}", "postprocess[0].sigmoid.axis: unknown key"),
    ("{sigmoid: {to: ''}}", "postprocess[0].sigmoid.to: expected a text"),
    ("{argmax: {axis: 0}}", "postprocess[0].argmax.axis: 0 counts the rows"),
    ("{top_k: {k: 0}}", "postprocess[0].top_k.k: expected a whole number from 1 to 1000000, found 0"),
    ("{top_k: {k: 1.5}}", "postprocess[0].top_k.k: expected a whole number"),
    ("{top_k: {K: 1}}", "postprocess[0].top_k.K: unknown key"),
    ("{threshold: {least: .nan}}", "postprocess[0].threshold.least: expected a number from -1e+38 to 1e+38, found nan"),
    ("{threshold: {least: high}}", "postprocess[0].threshold.least: expected a number"),
    ("{threshold: {also: boxes}}", "postprocess[0].threshold.also: expected a list of names, found 'boxes'"),
    ("{nms: {}}", "postprocess[0].nms.scores: format: xyxy needs it"),
    ("{nms: {format: yolo, scores: q}}", "postprocess[0].nms.scores: format: yolo takes none"),
    ("{nms: {format: yolov5, classes: q}}", "postprocess[0].nms.classes: format: yolov5 takes none"),
    ("{nms: {format: yolo11}}", "postprocess[0].nms.format: expected one of cxcywh, ssd, xyxy, yolo, yolov5, found 'yolo11'"),
    ("{nms: {format: ssd, scores: q}}", "postprocess[0].nms.anchors: format: ssd needs it"),
    ("{nms: {scores: q, anchors: a.npy}}", "postprocess[0].nms.anchors: format: xyxy takes none"),
    ("{nms: {format: ssd, scores: q, anchors: a.npy}}", "postprocess: the file 'a.npy' is not in"),
    ("{nms: {format: ssd, scores: q, anchors: ../a.npy}}", "postprocess: '../a.npy' leaves the model's folder"),
    (f"{{{NMS}, iou: 1.5}}}}", "postprocess[0].nms.iou: expected a number from 0 to 1, found 1.5"),
    (f"{{{NMS}, iou: .nan}}}}", "postprocess[0].nms.iou: expected a number from 0 to 1, found nan"),
    (f"{{{NMS}, score: .inf}}}}", "postprocess[0].nms.score: expected a number"),
    (f"{{{NMS}, max: 0}}}}", "postprocess[0].nms.max: expected a whole number from 1"),
    (f"{{{NMS}, per_class: 1}}}}", "postprocess[0].nms.per_class: expected true or false, found 1"),
    (f"{{{NMS}, background: -2}}}}", "postprocess[0].nms.background: expected a whole number from -1"),
    (f"{{{NMS}, normalized: maybe}}}}", "postprocess[0].nms.normalized: expected true or false"),
    (f"{{{NMS}, to_image: 0}}}}", "postprocess[0].nms.to_image: expected true or false"),
    ("{ctc: {}}", "postprocess[0].ctc.alphabet: this section needs a alphabet"),
    ("{ctc: {alphabet: [a]}}", "postprocess[0].ctc.alphabet: expected a text, found a list"),
    ("{ctc: {alphabet: none.txt}}", "postprocess: the file 'none.txt' is not in"),
    ("{ctc: {alphabet: bad.txt}}", "postprocess[0].ctc.alphabet: bad.txt: the label file cannot be used"),
    ("{ctc: {alphabet: ab, blank: -2}}", "postprocess[0].ctc.blank: expected a whole number from -1"),
    ("{mask: {threshold: '0.5'}}", "postprocess[0].mask.threshold: expected a number from -1e+38"),
    ("{mask: {to_image: no thanks}}", "postprocess[0].mask.to_image: expected true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "said"), KEYS, ids=[step for step, _ in KEYS])
def test_wrong_keys_are_refused_with_their_line(tmp_path, step, said):
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "model.yaml").write_text(f"model: m.onnx\npostprocess:\n  - {step}\n")
    with pytest.raises(RepositoryError, match=re.escape(said)) as error:
        load(tmp_path).__enter__()
    assert re.search(r"model.yaml, line [23]: ", str(error.value))


def test_steps_are_a_list(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "model.yaml").write_text("model: m.onnx\npostprocess: {softmax: {}}\n")
    with pytest.raises(RepositoryError, match="postprocess: expected a list"):
        load(tmp_path).__enter__()


OUTPUTS = [
    ("[{softmax: {}}]", {"s": S, "b": B}, "postprocess[0]: write of: one of s, b"),
    ("[{softmax: {of: t}}]", {"s": S, "b": B}, "postprocess[0].of: the model file has no 't'; it has s, b"),
    ("[{softmax: {of: scores}}]", {"score": S}, "did you mean score"),
    ("[{top_k: {}}, {softmax: {of: label}}]", {"s": S}, "postprocess[1].of: the model file has no 'label'; it has s, class, score"),
    ("[{softmax: {axis: 2}}]", {"s": S}, "postprocess[0].of: takes the shape [-1, -1, -1], and 's' has [-1, 3]"),
    ("[{softmax: {axis: -2}}]", {"s": S}, "postprocess[0].of: takes the shape [-1, -1, -1], and 's' has [-1, 3]"),
    ("[{top_k: {}}]", {"b": B}, "postprocess[0].of: takes the shape [-1, (1, 1000000)], and 'b' has [-1, 5, 4]"),
    ("[{threshold: {}}]", {"b": B}, "postprocess[0].of: takes the shape [-1, -1], and 'b' has [-1, 5, 4]"),
    ("[{threshold: {of: i, also: [x]}}]", {"i": I}, "postprocess[0].also: the model file has no 'x'"),
    (f"[{{{NMS}}}}}]", {"b": Q, "q": Q}, "postprocess[0].of: takes the shape [-1, -1, 4], and 'b' has [-1, 5, 3]"),
    (f"[{{{NMS}, classes: i}}}}]", {"b": B, "q": Q, "i": I}, "postprocess[0].scores: takes the shape [-1, -1], and 'q' has [-1, 5, 3]"),
    (f"[{{{NMS}, classes: b}}}}]", {"b": B, "q": I}, "postprocess[0].classes: takes the shape [-1, -1], and 'b' has [-1, 5, 4]"),
    (f"[{{{NMS}, normalized: true}}}}]", {"b": B, "q": Q}, "postprocess[0].normalized: needs an input that takes pictures"),
    ("[{nms: {format: yolo}}]", {"b": B.transpose(0, 2, 1)}, "postprocess[0].of: takes the shape [-1, (5, "),
    ("[{nms: {format: yolov5}}]", {"b": B}, "postprocess[0].of: takes the shape [-1, -1, (6, "),
    ("[{nms: {of: b, scores: q, format: ssd, anchors: a.npy}}]", {"b": B, "q": Q}, "postprocess[0].of: takes the shape [-1, 7, 4], and 'b' has [-1, 5, 4]"),
    ("[{nms: {of: b, scores: q, format: ssd, anchors: odd.npy}}]", {"b": B, "q": Q}, "postprocess[0].anchors: expected numbers [n, 4]"),
    ("[{nms: {of: b, scores: q, format: ssd, anchors: labels.txt}}]", {"b": B, "q": Q}, "postprocess[0].anchors: expected numbers [n, 4]"),
    ("[{ctc: {alphabet: abc}}]", {"q": Q}, "postprocess[0].of: takes the shape [-1, -1, 4], and 'q' has [-1, 5, 3]"),
    ("[{mask: {}}]", {"s": S}, "postprocess[0].of: takes the shape [-1, -1, -1] or [-1, 1, -1, -1] or [-1, -1, -1, 1], and 's' has [-1, 3]"),
    ("[{top_k: {of: s}}, {top_k: {of: t}}]", {"s": S, "t": S}, "postprocess[1].to: 'class' is an output already"),
    ("[{top_k: {of: s}}]", {"s": S, "score": S}, "postprocess[0].to: 'score' is an output already"),
    ("[{softmax: {of: s, to: t}}]", {"s": S, "t": S}, "postprocess[0].to: 't' is an output already"),
    ("[{top_k: {}}]\noutputs: [best]", {"s": S}, "outputs: the model file has no 'best'; it has s, class, score"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "arrays", "said"), OUTPUTS, ids=[one[0] for one in OUTPUTS])
def test_outputs_that_do_not_fit_a_step_are_refused(served, tmp_path, steps, arrays, said):
    np.save(tmp_path / "a.npy", np.zeros((7, 4)))
    np.save(tmp_path / "odd.npy", np.zeros(7))
    (tmp_path / "labels.txt").write_text("a")
    with (
        pytest.raises(LoadFailed, match=re.escape(said)),
        served(f"postprocess: {steps}", **arrays),
    ):
        pass


@pytest.mark.parametrize(
    ("step", "arrays", "classes"),
    [
        ("top_k: {}", {"s": S}, "[-1, (1, 2)], and 's' has [-1, 3]"),
        (f"{NMS}}}", {"b": B, "q": Q}, "[-1, -1, (1, 2)], and 'q' has [-1, 5, 3]"),
        ("nms: {format: yolo}", {"o": np.zeros((1, 7, 9), "f")}, "[-1, (5, 6), -1], and 'o'"),
        ("nms: {format: yolov5}", {"o": np.zeros((1, 9, 8), "f")}, "[-1, -1, (6, 7)], and 'o'"),
    ],
)
def test_fewer_labels_than_classes_are_refused(served, step, arrays, classes):
    said = re.escape(classes) + ".*labels: names 2 classes"
    with (
        pytest.raises(LoadFailed, match=said),
        served(f"postprocess: [{{{step}}}]", ["a", "b"], **arrays),
    ):
        pass


HANDLERS = {
    "def inference(x):\n    return {'s': x}\n": "postprocess[0].of: takes the shape [-1, -1], and 's' has",
    "from ksrv import BaseHandler\n\n\nclass H(BaseHandler):\n    def inference(self, x):\n"
    "        return x\n\n    def postprocess(self, x):\n        return x\n": "H does not",
    "def handle(batch, context):\n    return {'s': batch['x']}\n": "HandleFunctionHandler does not",
}


@pytest.mark.parametrize("code", HANDLERS)
def test_handlers_that_cannot_have_steps_are_refused(tmp_path, code):
    (tmp_path / "handler.py").write_text(code)
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\ninputs: [{name: x, datatype: FP32, shape: [-1, 2, 2]}]\n"
        "postprocess: [{threshold: {}}]\n"
    )
    with pytest.raises(LoadFailed, match=re.escape(HANDLERS[code])):
        load(tmp_path).__enter__()


def test_built_in_handlers_take_no_steps(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "model.yaml").write_text(
        "handler: image_classifier\nmodel: m.onnx\npostprocess: [{top_k: {}}]\n"
    )
    with pytest.raises(LoadFailed, match="ImageClassifier does not"):
        load(tmp_path).__enter__()


def test_open_sizes_are_checked_when_a_request_has_them(served):
    with served("warmup: false\npostprocess: [{ctc: {alphabet: abc}}]", shapes={"q": ("N", 5, "C")}, q=Q) as (
        model, inputs,
    ):  # fmt: skip
        with pytest.raises(
            Exception, match=r"takes the shape \[-1, -1, 4\], and 'q' has \[1, 5, 3\]"
        ):
            model.infer(inputs)
        assert model.infer({"q_in": np.zeros((1, 5, 4), np.float32)})["text"].tolist() == [b""]
