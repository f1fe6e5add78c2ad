"""nms gives the boxes of ONNX Runtime's NonMaxSuppression and of loops, for every format."""

import itertools

import numpy as np
import onnxruntime
import pytest

from ksrv.testing import load
from tests.support.images import files
from tests.support.model_files.onnx_models import write_graph

LABELS = ["cat", "dog", "eel"]


def random_boxes(seed, rows=2, count=60, classes=3):
    """Boxes as x1, y1, x2, y2 that overlap much, and scores [rows, count, classes]."""
    random = np.random.default_rng(seed)
    centres = random.uniform(-5, 100, (rows, count, 2))
    sizes = random.uniform(5, 60, (rows, count, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], -1).astype(np.float32)
    return boxes, random.random((rows, count, classes)).astype(np.float32)


@pytest.fixture(scope="module")
def onnx_nms(tmp_path_factory):
    """ONNX Runtime's NonMaxSuppression: the kept (row, class, box) of boxes and scores, as a set."""
    path = tmp_path_factory.mktemp("oracle") / "nms.onnx"
    write_graph(
        path,
        [("NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["kept"], {})],
        {
            "boxes": ("FP32", ("r", "n", 4)), "scores": ("FP32", ("r", "c", "n")),
            "iou": ("FP32", (1,)), "score": ("FP32", (1,)),
        },
        {"kept": ("INT64", ("k", 3))},
        {"most": np.int64([100_000])},
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(boxes, scores, iou, score):
        feeds = {"boxes": boxes, "scores": np.ascontiguousarray(scores.transpose(0, 2, 1))}
        limits = {"iou": np.float32([iou]), "score": np.float32([score])}
        return set(map(tuple, session.run(None, feeds | limits)[0].tolist()))

    return run


def kept(found, boxes):
    """The kept (row, class, box) of an answer, after a check of order and filling."""
    result = set()
    for row, count in enumerate(found["count"]):
        scores = found["score"][row]
        assert (np.diff(scores[:count]) <= 0).all()
        assert not scores[count:].any() and not found["boxes"][row, count:].any()
        assert (found["class"][row, count:] == -1).all()
        for box, kind in zip(found["boxes"][row, :count], found["class"][row], strict=False):
            [[at]] = np.nonzero((np.abs(boxes[row] - box) < 1e-2).all(axis=1))
            result.add((row, int(kind), int(at)))
    return result


def centred(boxes):
    return np.concatenate(
        [(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], axis=-1
    )


@pytest.mark.parametrize(("seed", "iou", "score"), [(1, 0.45, 0.25), (2, 0.1, 0.6), (3, 1, 0.9)])
@pytest.mark.parametrize("form", ["xyxy", "cxcywh"])
def test_nms_equals_onnx_runtimes(answer, onnx_nms, form, seed, iou, score):
    boxes, scores = random_boxes(seed)
    step = f"{{of: b, scores: s, format: {form}, iou: {iou}, score: {score}, max: 999}}"
    found = answer(
        f"postprocess: [{{nms: {step}}}]", b=boxes if form == "xyxy" else centred(boxes), s=scores
    )
    assert kept(found, boxes) == onnx_nms(boxes, scores, iou, score)


def best_only(scores):
    """The scores with 0 for all classes but the best of each box."""
    return np.where(scores == scores.max(axis=2, keepdims=True), scores, 0)


@pytest.mark.parametrize("form", ["yolo", "yolov5"])
def test_yolo_counts_the_best_class_of_each_box(answer, onnx_nms, form):
    boxes, scores = random_boxes(4)
    objects = np.random.default_rng(5).random((2, 60, 1)).astype(np.float32)
    if form == "yolo":
        rows = np.concatenate([centred(boxes), scores], -1).transpose(0, 2, 1)
    else:
        rows = np.concatenate([centred(boxes), objects, scores], -1)
        scores = objects * scores
    found = answer(
        f"postprocess: [{{nms: {{format: {form}, max: 999}}}}]",
        LABELS,
        o=np.ascontiguousarray(rows),
    )
    wanted = onnx_nms(boxes, best_only(scores), 0.45, 0.25)
    assert kept(found, boxes) == wanted
    for labels, kinds in zip(found["label"].tolist(), found["class"].tolist(), strict=True):
        assert labels == [LABELS[one].encode() if one >= 0 else b"" for one in kinds]


def loop_nms(boxes, scores, iou):
    """Greedy suppression of one row by loops; returns the kept boxes, the best first."""
    result = []
    for at in sorted(range(len(boxes)), key=lambda one: -scores[one]):
        x1, y1, x2, y2 = map(float, boxes[at])
        for other in result:
            a1, b1, a2, b2 = map(float, boxes[other])
            inner = max(min(x2, a2) - max(x1, a1), 0) * max(min(y2, b2) - max(y1, b1), 0)
            if inner / ((x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - inner) > iou:
                break
        else:
            result.append(at)
    return result


def test_boxes_of_different_classes_drop_each_other_without_per_class(answer):
    boxes, scores = random_boxes(6, classes=1)
    kinds = np.random.default_rng(6).integers(0, 3, scores.shape[:2])
    found = answer(
        "postprocess: [{nms: {of: b, scores: s, classes: k, per_class: false, score: 0, max: 7}}]",
        b=boxes, s=scores[..., 0], k=kinds,
    )  # fmt: skip
    for row in range(2):
        wanted = loop_nms(boxes[row], scores[row, :, 0].tolist(), 0.45)[:7]
        assert found["class"][row].tolist() == kinds[row][wanted].tolist()
        np.testing.assert_allclose(found["boxes"][row], boxes[row][wanted])
    assert found["count"].tolist() == [7, 7]


def test_classes_of_an_output_keep_boxes_of_other_classes(answer):
    boxes = np.float32([[[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 9, 10]]])
    found = answer(
        "postprocess: [{nms: {of: b, scores: s, classes: k}}]",
        b=boxes, s=np.float32([[0.5, 0.8, 0.9]]), k=np.int64([[1, 2, 1]]),
    )  # fmt: skip
    assert found["class"].tolist() == [[1, 2]]
    assert found["boxes"].tolist() == [[boxes[0, 2].tolist(), boxes[0, 1].tolist()]]


def test_ssd_decodes_offsets_from_anchors(answer, tmp_path):
    random = np.random.default_rng(8)
    anchors = random.uniform(0.1, 0.9, (20, 4)).astype(np.float32)
    np.save(tmp_path / "anchors.npy", anchors)
    offsets = random.normal(size=(2, 20, 4)).astype(np.float32)
    scores = random.random((2, 20, 3)).astype(np.float32)
    found = answer(
        "postprocess: [{nms: {of: b, scores: s, format: ssd, anchors: anchors.npy, iou: 1,"
        " background: 0, score: 0.5}}]",
        b=offsets, s=scores,
    )  # fmt: skip
    for row in range(2):
        wanted = []
        for at, kind in itertools.product(range(20), range(1, 3)):
            if scores[row, at, kind] < 0.5:
                continue
            (x, y, w, h), (cx, cy, aw, ah) = offsets[row, at].tolist(), anchors[at].tolist()
            x, y = cx + x * 0.1 * aw, cy + y * 0.1 * ah
            w, h = aw * np.exp(w * 0.2) / 2, ah * np.exp(h * 0.2) / 2
            wanted.append((float(scores[row, at, kind]), kind, [x - w, y - h, x + w, y + h]))
        wanted.sort(key=lambda one: -one[0])
        count = found["count"][row]
        assert found["class"][row, :count].tolist() == [kind for _, kind, _ in wanted]
        np.testing.assert_allclose(
            found["boxes"][row, :count], [box for _, _, box in wanted], 1e-4, 1e-5
        )


def test_boxes_that_are_no_numbers_or_infinite_are_dropped(answer):
    boxes = np.float32(
        [[[0, 0, 1, 1], [0, 0, np.nan, 1], [0, 0, np.inf, 1], [5, 5, 4, 4], [2, 2, 3, 3]]]
    )
    scores = np.float32([[[0.9], [0.9], [0.9], [0.8], [np.nan]]])
    found = answer("postprocess: [{nms: {of: b, scores: s}}]", b=boxes, s=scores)
    assert found["boxes"].tolist() == [[[0, 0, 1, 1], [5, 5, 4, 4]]]


@pytest.mark.parametrize("shape", [(1, 0, 4), (2, 3, 4)])
def test_no_box_is_an_empty_answer(answer, shape):
    found = answer(
        "postprocess: [{nms: {of: b, scores: s}}]",
        b=np.zeros(shape, np.float32), s=np.zeros(shape[:2], np.float32),
    )  # fmt: skip
    assert found["boxes"].shape == (shape[0], 0, 4)
    assert found["class"].shape == found["score"].shape == (shape[0], 0)
    assert found["count"].tolist() == [0] * shape[0]


HANDLER = """
import numpy as np

BOXES = np.float32([[8, 20, 40, 44], [0.25, 0.25, 0.5, 0.5]])


def inference(image, batch):
    return {{"b": np.tile(BOXES[{row}], (batch.rows, 1, 1)), "s": np.ones((batch.rows, 1), "f")}}
"""


@pytest.mark.parametrize(
    ("row", "keys", "resize", "wanted"),
    [
        (0, "", "letterbox", [12.5, 6.25, 62.5, 43.75]),  # 100 x 50 in 64 x 64: scale 0.64, top 16
        (0, "", "linear", [12.5, 15.625, 62.5, 34.375]),  # 0.64 across, 1.28 down
        (0, ", to_image: false", "letterbox", [8, 20, 40, 44]),
        (1, ", normalized: true", "letterbox", [25, 0, 50, 25]),
        (1, ", normalized: true, to_image: false", "letterbox", [16, 16, 32, 32]),
    ],
)
def test_boxes_are_mapped_back_to_the_picture(tmp_path, row, keys, resize, wanted):
    (tmp_path / "handler.py").write_text(HANDLER.format(row=row))
    (tmp_path / "model.yaml").write_text(
        "handler: handler.py\nbatching: {max_batch_size: 4}\n"
        "inputs: [{name: image, datatype: FP32, shape: [-1, 64, 64, 3],"
        f" image: {{resize: {resize}, model_layout: NCHW}}}}]\n"
        f"postprocess: [{{nms: {{of: b, scores: s{keys}}}}}]\n"
    )
    with load(tmp_path) as model:
        picture = files.png(50, 100)
        found = model.infer({"image": [picture, picture]})
    np.testing.assert_allclose(found["boxes"], [[wanted], [wanted]], atol=1e-4)


def test_steps_after_a_handler_take_what_it_returns_and_not_the_file(tmp_path, served):
    (tmp_path / "handler.py").write_text(
        "from ksrv import BaseHandler\n\n\nclass Corners(BaseHandler):\n    def inference(self, b_in, s_in):\n"
        "        found = self.model(b_in, s_in)\n        return found | {'b': found['b'][..., :4]}\n"
    )
    boxes = np.float32([[[0, 0, 8, 8, 1, 1]]])
    steps = "handler: handler.py\npostprocess: [nms: {of: b, scores: s, to_image: false}]"
    with served(steps, b=boxes, s=np.float32([[[0.9]]])) as (model, inputs):
        assert model.infer(inputs)["boxes"].tolist() == [[[0, 0, 8, 8]]]
