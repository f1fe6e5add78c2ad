"""The steps of `postprocess:` in model.yaml. `ksrv/handlers/postprocess/` runs them.

A step takes outputs by name and makes outputs. The names of its results begin with `to` and an underscore, if it has
several results, and `to` is the name of an only result.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from ksrv.model.spec import LARGEST_SIZE, Key


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of every step.

    Attributes:
        of: The output to take; by default the only output.
        to: The name of the result.
    """

    of: Annotated[str, Key(min_length=1)] = ""
    to: Annotated[str, Key(min_length=1)] = ""

    def takes(self, only: str) -> list[tuple[str, str]]:
        """Return the outputs that the step takes, each with its key.

        Args:
            only: The only output, for a step without `of`.
        """
        keys = [(key, getattr(self, key, "")) for key in ("scores", "classes")]
        also = [("also", name) for name in getattr(self, "also", ())]
        return [("of", self.of or only), *(pair for pair in keys if pair[1]), *also]


class Softmax(Step, frozen=True, kw_only=True):
    """Scores become probabilities, FP32.

    Attributes:
        of: The output with the scores; by default the only output.
        to: The name of the result; by default it replaces the scores.
        axis: The dimension of the classes.
    """

    axis: Annotated[int, Key(ge=-31, le=31)] = -1


class Sigmoid(Step, frozen=True, kw_only=True):
    """Each score becomes a probability, FP32.

    Attributes:
        of: The output with the scores; by default the only output.
        to: The name of the result; by default it replaces the scores.
    """


class Argmax(Step, frozen=True, kw_only=True):
    """Makes `class`, INT32, and `score`, FP32: the class with the largest score, and this score.

    Attributes:
        of: The output with the scores; by default the only output.
        to: The results are TO_class and TO_score.
        axis: The dimension of the classes, such as 1 for [rows, classes, height, width].
    """

    axis: Annotated[int, Key(ge=-31, le=31)] = -1


class TopK(Step, frozen=True, kw_only=True):
    """Makes `class`, INT64, `score`, FP32, and with labels `label`, BYTES, all [rows, k]: the best classes, in order.

    Attributes:
        of: The output with the scores, [rows, classes]; by default the only output.
        to: The results are TO_class, TO_score and TO_label.
        k: How many classes; a model with fewer classes answers with all.
    """

    k: Annotated[int, Key(ge=1, le=1_000_000)] = 5


class Threshold(Step, frozen=True, kw_only=True):
    """Keeps entries [rows, n] that reach a number, in their order; makes `count`, INT32 [rows], of each row.

    Rows with fewer entries are filled up: scores with 0, classes with -1, texts with "".

    Attributes:
        of: The output with the scores, [rows, n]; by default the only output.
        to: The results are TO_count, and TO_ and the name of each output.
        least: The lowest score that is kept.
        also: Outputs [rows, n, ...] that keep the same entries.
    """

    least: Annotated[float, Key(ge=-1e38, le=1e38)] = 0.5
    also: Annotated[tuple[str, ...], Key(written=list[str], expected="a list of names")] = ()


class Nms(Step, frozen=True, kw_only=True):
    """Makes `boxes`, FP32 [rows, n, 4] as x1, y1, x2, y2, `class`, `score`, `count`, and with labels `label`.

    Boxes that overlap a better box are dropped (non-maximum suppression).

    Attributes:
        of: The output with the boxes; by default the only output.
        to: The results are TO_boxes, TO_class, TO_score, TO_count and TO_label.
        format: yolo: [rows, 4 + classes, n]; yolov5: [rows, n, 5 + classes]; the others: [rows, n, 4]. ssd: offsets
            from anchors, with the variances 0.1 and 0.2.
        scores: The output with the scores, [rows, n, classes] or [rows, n]; not for yolo and yolov5.
        classes: The output with the class of each box, [rows, n], for scores without classes.
        score: The lowest score that is kept.
        iou: Boxes are dropped if their overlap with a better box is larger.
        max: The most boxes of a row.
        per_class: false: Boxes of different classes drop each other, too.
        background: The class that is not an object; -1 for none.
        normalized: Boxes count in heights and widths of the row, from 0 to 1, instead of pixels.
        anchors: format ssd: a .npy file of [n, 4]: centre x, centre y, width, height.
        to_image: Boxes are mapped back to the picture that was sent.
    """

    format: Annotated[Literal["xyxy", "cxcywh", "yolo", "yolov5", "ssd"], Key()] = "xyxy"
    scores: Annotated[str, Key(min_length=1)] = ""
    classes: Annotated[str, Key(min_length=1)] = ""
    score: Annotated[float, Key(ge=-1e38, le=1e38)] = 0.25
    iou: Annotated[float, Key(ge=0.0, le=1.0)] = 0.45
    max: Annotated[int, Key(ge=1, le=1_000_000)] = 300
    per_class: Annotated[bool, Key()] = True
    background: Annotated[int, Key(ge=-1, le=LARGEST_SIZE)] = -1
    normalized: Annotated[bool, Key()] = False
    anchors: Annotated[Any, Key(written=str, min_length=1)] = ""  # the handler puts the array here
    to_image: Annotated[bool, Key()] = True


class Ctc(Step, frozen=True, kw_only=True):
    """Makes `text`, BYTES, and `score`, FP32, both [rows]: the likeliest characters, without blanks and repetitions.

    Attributes:
        of: The output with the probabilities, [rows, steps, characters + 1]; by default the only output.
        to: The results are TO_text and TO_score.
        alphabet: The characters in order, or a .txt file with a character on each line; without the blank.
        blank: The index of the blank; -1 for the last.
    """

    alphabet: Annotated[tuple[str, ...], Key(written=str, min_length=1)]
    blank: Annotated[int, Key(ge=-1, le=LARGEST_SIZE)] = 0


class Mask(Step, frozen=True, kw_only=True):
    """Makes a PNG for each row: of scores [rows, height, width] from 0 to 1, or of classes up to 255 from `argmax`.

    Attributes:
        of: The output; by default the only output.
        to: The name of the result; by default it replaces the output.
        threshold: Scores from here on become 255, the others 0; without it 255 times the score.
        to_image: The mask is resized to the picture that was sent.
    """

    threshold: Annotated[float | None, Key(ge=-1e38, le=1e38)] = None
    to_image: Annotated[bool, Key()] = True


class PostprocessStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of `postprocess:`, with the name of the step as the only key.

    Attributes:
        softmax: Scores become probabilities.
        sigmoid: Each score becomes a probability.
        argmax: The class with the largest score.
        top_k: The best classes, with labels.
        threshold: Entries that reach a number.
        nms: Boxes that overlap no better box.
        ctc: Probabilities of characters become texts.
        mask: Scores of pixels become PNG files.
    """

    softmax: Annotated[Softmax | None, Key()] = None
    sigmoid: Annotated[Sigmoid | None, Key()] = None
    argmax: Annotated[Argmax | None, Key()] = None
    top_k: Annotated[TopK | None, Key()] = None
    threshold: Annotated[Threshold | None, Key()] = None
    nms: Annotated[Nms | None, Key()] = None
    ctc: Annotated[Ctc | None, Key()] = None
    mask: Annotated[Mask | None, Key()] = None

    @property
    def given(self) -> list[tuple[str, Step]]:
        """The names and steps that were given; a checked entry has a single step."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return [pair for pair in found.items() if pair[1] is not None]


def problems(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the keys of a step that do not fit its other keys, with the text."""
    if getattr(step, "axis", -1) == 0:
        yield "axis", "0 counts the rows; expected the dimension of the classes"
    if not isinstance(step, Nms):
        return
    joined = step.format.startswith("yolo")
    needed = {"scores": not joined, "anchors": step.format == "ssd"}
    for key, is_needed in (needed | {"classes": bool(step.classes and not joined)}).items():
        if is_needed != bool(getattr(step, key)):
            yield key, f"format: {step.format} {'needs it' if is_needed else 'takes none'}"
