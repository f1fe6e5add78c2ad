"""Boxes and masks of objects: formats of detectors, non-maximum suppression, PNG files, and the way back to the picture.

Rows with different numbers of boxes become one array, filled up to the longest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ksrv.handlers.postprocess.scores import to_array
from ksrv.images import opencv
from ksrv.model.postprocess import Mask, Nms, Threshold
from ksrv.request import Array, ImagePlacement

CANDIDATES = 4096
"""The boxes of a class that are compared, the best first, because each is compared with every box that is kept."""


def padded(
    parts: Sequence[Array], dtype: Any, sizes: tuple[int, ...] = (), filler: Any = None
) -> Array:
    """Return one array with a row for each part, filled up to the longest part.

    Args:
        dtype: The dtype of the array.
        sizes: The dimensions of an entry.
        filler: The value after the end of a part; by default 0, -1 for integers, "" for texts.
    """
    filler = {"i": -1, "O": ""}.get(np.dtype(dtype).kind, 0) if filler is None else filler
    joined = np.full((len(parts), max(map(len, parts), default=0), *sizes), filler, dtype)
    for row, part in enumerate(parts):
        joined[row, : len(part)] = part
    return joined


def threshold(step: Threshold, named: Mapping[str, Any], _: object = None) -> dict[str, Array]:
    """Return the entries of each output whose score, in the first output, reaches the threshold, and their number."""
    arrays = {name: to_array(value) for name, value in named.items()}
    kept = next(iter(arrays.values())) >= step.least
    found = {}
    for name, rows in arrays.items():
        parts = [row[at] for row, at in zip(rows, kept, strict=True)]
        found[name] = padded(parts, rows.dtype, rows.shape[2:])
    return found | {"count": kept.sum(axis=1, dtype=np.int32)}


def nms(step: Nms, named: Mapping[str, Any], images: Sequence[ImagePlacement]) -> dict[str, Array]:
    """Return the boxes that overlap no better box.

    Args:
        named: The outputs that the step names: boxes, scores and classes.
        images: The place of each picture in its row; empty for a model that takes none.
    """
    boxes, *rest = (to_array(value) for value in named.values())
    scores = rest[0] if rest else boxes.transpose(0, 2, 1) if step.format == "yolo" else boxes
    if step.format == "yolo":
        boxes, scores = scores[..., :4], scores[..., 4:]
    elif step.format == "yolov5":
        boxes, scores = scores[..., :4], scores[..., 4:5] * scores[..., 5:]
    boxes = _corners(step, boxes.astype(np.float32, copy=False))
    scores = scores.astype(np.float32, copy=False)
    scores = scores if scores.ndim == 3 else scores[..., None]
    found = []
    for row, inside in enumerate(boxes):
        if step.normalized:
            size = images[row].row_width, images[row].row_height
            inside = inside * np.array(size * 2, np.float32)
        inside, *parts = _chosen(step, inside, scores[row], rest[1][row] if rest[1:] else None)
        mapped = images[row].to_image(inside) if step.to_image and images else inside
        found.append((mapped, *parts))
    corners, classes, best = ([parts[at] for parts in found] for at in range(3))
    return {
        "boxes": padded(corners, np.float32, (4,)),
        "class": padded(classes, np.int64),
        "score": padded(best, np.float32),
        "count": np.array(list(map(len, best)), np.int32),
    }


def _corners(step: Nms, boxes: Array) -> Array:
    """Return boxes of any format as x1, y1, x2, y2."""
    if step.format == "xyxy":
        return boxes
    centres, sizes = boxes[..., :2], boxes[..., 2:]
    if step.format == "ssd":
        places, shapes = step.anchors[:, :2], step.anchors[:, 2:]
        centres = places + centres * np.float32(0.1) * shapes
        with np.errstate(over="ignore"):  # an infinite box is dropped
            sizes = shapes * np.exp(sizes * np.float32(0.2))
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=-1)


def _chosen(
    step: Nms, boxes: Array, scores: Array, classes: Array | None
) -> tuple[Array, Array, Array]:
    """Return the boxes of a row that are kept, their classes and their scores, the best first.

    Args:
        boxes: [n, 4] as x1, y1, x2, y2.
        scores: [n, classes]
        classes: The class of each box, or None.
    """
    at = np.flatnonzero(scores.max(axis=1, initial=-np.inf) >= step.score)
    boxes, scores = boxes[at], scores[at]
    kept = (scores >= step.score) & np.isfinite(boxes).all(axis=1, keepdims=True)
    kept &= np.arange(scores.shape[1]) != step.background
    if step.format.startswith("yolo"):  # has one class for each box
        kept &= np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]
    entries, kinds = np.nonzero(kept)
    boxes, best = boxes[entries], scores[entries, kinds]
    kinds = kinds if classes is None else classes[at][entries].astype(np.int64)
    rectangles = np.concatenate([boxes[:, :2], np.maximum(boxes[:, 2:] - boxes[:, :2], 0)], axis=1)
    order = np.argsort(-best, kind="stable")
    found: list[Array] = []
    for kind in np.unique(kinds) if step.per_class else [kinds]:
        own = order[(kinds == kind)[order]][:CANDIDATES]
        # cv2 takes no scores below 0. The boxes are in order, so any falling scores do.
        falling = np.arange(len(own), 0, -1, dtype=np.float32)
        left = opencv.load().dnn.NMSBoxes(rectangles[own].astype(float), falling, 0.0, step.iou)
        found.append(own[np.array(left, int)])
    places = np.concatenate([order[:0], *found])
    places = places[np.argsort(-best[places], kind="stable")][: step.max]
    return boxes[places], kinds[places], best[places]


def mask(
    step: Mask, named: Mapping[str, Any], images: Sequence[ImagePlacement]
) -> dict[str, Array]:
    """Return a PNG for each row.

    Args:
        named: The only output: classes, or scores from 0 to 1.
        images: The place of each picture in its row; empty for a model that takes none.
    """
    [scores] = map(to_array, named.values())
    if scores.ndim == 4:
        scores = scores[:, 0] if scores.shape[1] == 1 else scores[..., 0]
    has_classes = scores.dtype.kind in "iu"
    scores = scores if has_classes else scores.astype(np.float32, copy=False)
    files = np.empty(len(scores), object)
    for row, values in enumerate(scores):
        picture = values.clip(0, 255).astype(np.uint8) if has_classes else np.nan_to_num(values)
        if images and step.to_image:
            picture = _in_image(picture, images[row])
        if not has_classes:
            shares = picture.clip(0, 1) if step.threshold is None else picture >= step.threshold
            picture = (shares * np.float32(255)).round().astype(np.uint8)
        files[row] = opencv.load().imencode(".png", picture)[1].tobytes()
    return {"": files}


def _in_image(mask: Array, image: ImagePlacement) -> Array:
    """Return the mask of a row as a mask of the picture, with 0 for parts of the picture that the row does not show."""
    cv2, row = opencv.load(), np.array([image.row_width, image.row_height] * 2)
    inside = image.to_image(np.array([[0, 0, *row[:2]]], float))[0].round()
    # The same part of the picture in pixels of the row, and then of the mask.
    shown = inside * ([image.scale_x, image.scale_y] * 2) + [image.left, image.top] * 2
    x, y, x2, y2 = (shown / row * (mask.shape[::-1] * 2)).round().astype(int)
    left, top, right, bottom = inside.astype(int)
    found = np.zeros((image.height, image.width), mask.dtype)
    part, size = mask[y : max(y2, y + 1), x : max(x2, x + 1)], (right - left, bottom - top)
    way = cv2.INTER_NEAREST if mask.dtype == np.uint8 else cv2.INTER_LINEAR
    found[top:bottom, left:right] = cv2.resize(part, size, interpolation=way)
    return found
