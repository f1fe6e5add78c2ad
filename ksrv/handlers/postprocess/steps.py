"""`Steps` runs the steps of `postprocess:` on the outputs of a model, and declares the outputs that they make.

`_walk` goes through the steps: once with the declared outputs of the model, when it is loaded, and for each batch with
arrays and tensors. Both times the same rules refuse an output that does not fit its step.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from ksrv.errors import InferenceError, quote
from ksrv.handlers.batch import Batch
from ksrv.handlers.file_tensors import check_names
from ksrv.handlers.outputs import by_name
from ksrv.handlers.postprocess import regions, scores
from ksrv.model import postprocess as keys
from ksrv.model.fault import Fault, KeyPath
from ksrv.model.spec import Dimension, TensorSpec, allows
from ksrv.request import ImagePlacement

log = logging.getLogger("ksrv.handlers")

DOUBLE_SOFTMAX = (
    "the outputs of the model %s look like probabilities: no value is below 0, and they add up to 1. If the file ends in "
    "a softmax, leave the step out; of a built-in handler, set parameters: {softmax: false}"
)
MOST_CLASSES = 1_000_000
NEED_VALUES = (keys.Softmax, keys.Argmax, keys.Mask)
"""The steps that make nothing of a row without values. Sizes of 0 come from inputs of a free size."""
Shape = tuple[Dimension, ...]
Named = Mapping[str, Any]
"""Outputs by name, as specs, arrays or tensors."""
Make = Callable[[keys.Step, Named], dict[str, Any]]

RUN: dict[type[keys.Step], Callable[[Any, Named, Sequence[ImagePlacement]], dict[str, Any]]] = {
    keys.Softmax: scores.softmax,
    keys.Sigmoid: scores.sigmoid,
    keys.Argmax: scores.argmax,
    keys.TopK: scores.top_k,
    keys.Threshold: regions.threshold,
    keys.Nms: regions.nms,
    keys.Ctc: scores.ctc,
    keys.Mask: regions.mask,
}
"""Makes the results of a step from the outputs that it takes and the place of each picture in its row. The key of an
only result is "".
"""


@dataclass
class Steps:
    """The steps of one model.

    Attributes:
        steps: The steps.
        labels: Class labels by index, or None for a model without labels.
        model: The model's name.
        kept: The outputs that are answered; empty for all that no later step takes.
        takes_images: Whether an input takes pictures.

    Raises:
        Fault: The anchors of a step cannot be read, or a step needs pictures and no input takes them.
    """

    steps: list[keys.Step]
    labels: Sequence[str] | None
    model: str
    kept: Sequence[str] = ()
    takes_images: bool = False
    _declared: dict[str, TensorSpec] = field(default_factory=dict)
    _is_checked: bool = False  # whether the scores of a softmax were looked at

    def __post_init__(self) -> None:
        for index, step in enumerate(self.steps):
            path = ("postprocess", index)
            if isinstance(step, keys.Nms) and step.normalized and not self.takes_images:
                raise Fault((*path, "normalized"), "needs an input that takes pictures")
            if isinstance(step, keys.Nms) and step.anchors:
                try:
                    found = np.load(step.anchors, allow_pickle=False).astype(np.float32)
                    self.steps[index] = structs.replace(step, anchors=found.reshape(-1, 4))
                except (OSError, ValueError) as error:
                    raise Fault((*path, "anchors"), f"expected numbers [n, 4]: {error}") from None

    def declare(self, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the outputs that are answered; none if outputs of the model are not known.

        Raises:
            Fault: An output does not fit a step.
        """
        self._declared = {spec.name: spec for spec in outputs}
        are_known = all(spec.shape for spec in outputs)  # no dimensions: the file says no rank
        made = self._walk(self._declared, self._specs) if outputs and are_known else {}
        return tuple(replace(spec, name=name) for name, spec in made.items())

    def run(self, outputs: Any, batch: Batch | None = None) -> dict[str, Any]:
        """Return the outputs by name: the stage `postprocess` of a handler.

        Raises:
            Fault: An output does not fit a step.
        """
        images = batch.images if batch is not None and self.takes_images else ()

        def made(step: keys.Step, named: Named) -> dict[str, Any]:
            if isinstance(step, keys.Softmax) and not self._is_checked:
                self._is_checked = True
                if scores.are_probabilities(step, *named.values()):
                    log.warning(DOUBLE_SOFTMAX, self.model)
            results = RUN[type(step)](step, named, images)
            if isinstance(step, keys.TopK | keys.Nms) and self.labels is not None:
                results["label"] = scores.labels_of(results["class"], self.labels)
            return results

        return self._walk(by_name(outputs, self._declared), made)

    def _walk(self, given: Named, make: Make) -> dict[str, Any]:
        """Return the outputs that are answered.

        Args:
            make: Makes the results of a step from the outputs that it takes.
        """
        values, used = dict(given), set[str]()
        for index, step in enumerate(self.steps):
            left = [name for name in values if name not in used]
            if not step.of and len(left) != 1:
                raise Fault(("postprocess", index), f"write of: one of {', '.join(left)}")
            named = {}
            for key, name in step.takes(next(iter(left), "")):
                path = ("postprocess", index, key)
                check_names(path, [name], values)
                value = values[name]
                named[name] = value if hasattr(value, "shape") else np.asarray(value)
                self._check(step, path, name, named[name])
            before = f"{step.to}_" if step.to else ""
            results = {
                before + key if key else step.to or next(iter(named)): value
                for key, value in make(step, named).items()
            }
            used |= named.keys()
            if twice := results.keys() & values.keys() - used:
                raise Fault(("postprocess", index, "to"), f"{min(twice)!r} is an output already")
            values |= results
            used -= results.keys()
        kept = self.kept or [name for name in values if name not in used]
        check_names(("outputs",), kept, values)
        return {name: values[name] for name in kept}

    def _check(self, step: keys.Step, path: KeyPath, name: str, value: Any) -> None:
        """Refuse an output, as a spec or as a value, whose datatype or shape a step does not take.

        Args:
            path: The path of the key that names the output.

        Raises:
            Fault: The step never takes such an output.
            InferenceError: A request has left the output without values that the step needs.
        """
        shape = value.wire_shape if isinstance(value, TensorSpec) else list(value.shape)
        kind = getattr(value, "datatype", None) or str(value.dtype)
        wanted = _wanted(step, path[-1], len(shape), len(self.labels or ()) or MOST_CLASSES)
        fits = any(_fits(shape, sizes) for sizes in wanted)
        if 0 in shape[1:] and (isinstance(step, NEED_VALUES) or not fits):
            raise InferenceError(f"the request leaves {name!r} without values", 400)
        if not fits:
            shown = " or ".join(str(list(sizes)) for sizes in wanted)
            hint = f"; labels: names {len(self.labels)} classes" if self.labels else ""
            raise Fault(path, f"takes the shape {shown}, and {quote(name)} has {shape}{hint}")
        if kind in ("BYTES", "object") and path[-1] != "also":
            raise Fault(path, f"takes numbers, and {quote(name)} has texts")

    def _specs(self, step: keys.Step, named: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the specs of the results of a step."""
        shape = next(iter(named.values())).wire_shape
        row, entries = ("INT32", (-1,)), (-1, -1)
        rest = tuple(np.delete(shape, getattr(step, "axis", -1)).tolist())
        best = (-1, *(min(getattr(step, "k", 1), size) for size in shape[1:2]))
        kept = {name: (spec.datatype, (*entries, *spec.shape[2:])) for name, spec in named.items()}
        ranked = {"class": ("INT64", entries), "score": ("FP32", entries)}
        results: dict[type[keys.Step], dict[str, tuple[str, Shape]]] = {
            keys.Argmax: {"class": ("INT32", rest), "score": ("FP32", rest)},
            keys.TopK: {"class": ("INT64", best), "score": ("FP32", best)},
            keys.Threshold: {**kept, "count": row},
            keys.Nms: {"boxes": ("FP32", (*entries, 4)), **ranked, "count": row},
            keys.Ctc: {"text": ("BYTES", (-1,)), "score": ("FP32", (-1,))},
            keys.Mask: {"": ("BYTES", (-1,))},
        }
        made = results.get(type(step), {"": ("FP32", tuple(shape))})
        if isinstance(step, keys.TopK | keys.Nms) and self.labels is not None:
            made["label"] = ("BYTES", made["class"][1])
        file = "image/png" if isinstance(step, keys.Mask) else ""
        return {key: TensorSpec(key, *form, content_type=file) for key, form in made.items()}


def _wanted(step: keys.Step, key: object, rank: int, classes: int) -> Sequence[Shape]:
    """Return the shapes that a step takes under a key.

    Args:
        rank: The dimensions of the output.
        classes: The most classes.
    """
    match step:
        case keys.TopK():
            return [(-1, (1, classes))]
        case keys.Threshold():
            return [(-1,) * max(rank, 2) if key == "also" else (-1, -1)]
        case keys.Nms(format="yolo"):
            return [(-1, (5, 4 + classes), -1)]
        case keys.Nms(format="yolov5"):
            return [(-1, -1, (6, 5 + classes))]
        case keys.Nms():
            entries = (-1, len(step.anchors) or -1)
            scores = [] if step.classes or key == "classes" else [(*entries, (1, classes))]
            return [(*entries, 4)] if key == "of" else [entries, *scores]
        case keys.Ctc():
            return [(-1, -1, len(step.alphabet) + 1)]
        case keys.Mask():
            return [(-1, -1, -1), (-1, 1, -1, -1), (-1, -1, -1, 1)]
    axis = getattr(step, "axis", 0)
    return [(-1,) * max(rank, axis + 1 if axis > 0 else 1 - axis)]


def _fits(shape: Sequence[int], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        size == -1 or allows(bound, size) for size, bound in zip(shape, wanted, strict=True)
    )
