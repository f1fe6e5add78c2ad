"""The base of the built-in handlers for pictures and texts: each is a preset of inputs and steps of `postprocess:`.

A preset can answer in several forms (classes and probabilities as tensors, a JSON object for each row). model.yaml
selects outputs by declaring them; a model.yaml that declares none gets the preset's default outputs.

ksrv decodes and prepares images in the batch before the handler sees them; `IMAGENET` says how, as models for ImageNet
expect it. model.yaml may declare another input instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.postprocess.scores import labels_of, primary_output
from ksrv.handlers.postprocess.steps import Steps
from ksrv.model.postprocess import Softmax, Step
from ksrv.model.spec import Dimension, ImageSpec, ModelSpec, TensorSpec
from ksrv.request import Array

SIDE = 224
SHORTER_SIDE = 256

# The sizes to which an image can be cropped after it was resized to SHORTER_SIDE.
_CROPS = range(1, SHORTER_SIDE + 1)

IMAGENET = ImageSpec(
    color="RGB",
    channels="convert",
    exif="apply",
    resize="pillow",
    shorter_side=SHORTER_SIDE,
    scale=255.0,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    arithmetic="exact",
    model_layout="NCHW",
)


EXPECTED = {bool: "true or false", int: "a positive whole number", float: "a number"}


def parameter(given: Mapping[str, Any], name: str, default: Any, known: Sequence[Any] = ()) -> Any:
    """Return a parameter of model.yaml, of the type of the default.

    Args:
        known: The values that it may have; empty for any value.

    Raises:
        ValueError: It has another type, it is a whole number below 1, or the value is not known.
    """
    value, kind = given.get(name, default), type(default)
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind is int and value < 1) or (known and value not in known):
        expected = f"one of {', '.join(known)}" if known else EXPECTED[kind]
        raise ValueError(f"parameters.{name} is {expected}, not {value!r}")
    return kind(value)


def ranked(*sizes: Dimension) -> tuple[TensorSpec, ...]:
    """Return the outputs of a classifier: JSON, labels, classes and probabilities, with sizes besides the rows."""
    named = {"label": "BYTES", "class": "INT64", "probability": "FP32"}
    specs = (TensorSpec(name, datatype, (-1, *sizes)) for name, datatype in named.items())
    return (TensorSpec("output", "BYTES", (-1,)), *specs)


class Preset(BaseHandler):
    """A handler whose default input is one RGB image for each row, and whose outputs are made by steps.

    Attributes:
        default_outputs: The outputs of a model whose model.yaml declares none.
        optional_outputs: Outputs that the handler makes only for a model that declares them.
        made: The outputs that the steps make.
        renamed: The outputs of `made` that are answered under another name.
    """

    image: ImageSpec = IMAGENET
    default_outputs: tuple[TensorSpec, ...] = ()
    optional_outputs: tuple[TensorSpec, ...] = (TensorSpec("probabilities", "FP32", (-1, -1)),)
    made: tuple[str, ...] = ("probabilities", "class", "score")
    renamed: Mapping[str, str] = {"probability": "score"}

    def steps(self) -> tuple[Step, ...]:
        """Return the steps: of the classifiers a softmax, unless `parameters: {softmax: false}` is set."""
        wanted = parameter(self.context.parameters, "softmax", True)
        return (Softmax(of="probabilities", axis=1),) if wanted else ()

    @cached_property
    def made_by(self) -> Steps:
        """The steps, made on first use."""
        return Steps(list(self.steps()), None, self.context.model_name, self.made)

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the image input and the outputs that model.yaml leaves open, and check the others.

        Args:
            spec: The inputs and outputs that model.yaml declares.

        Raises:
            ValueError: model.yaml declares an output that this handler does not have, or a parameter is wrong.
        """
        _ = self.made_by  # raises if a parameter is invalid
        names = [output.name for output in (*self.default_outputs, *self.optional_outputs)]
        for name in (declared.name for declared in spec.outputs if declared.name not in names):
            offered = ", ".join(names)
            raise ValueError(f"{type(self).__name__} has no output {name!r}; it offers {offered}")
        return replace(
            spec,
            inputs=spec.inputs or self.default_inputs(),
            outputs=spec.outputs or self.default_outputs,
        )

    def default_inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of a model whose model.yaml declares none."""
        return (TensorSpec("image", "FP32", (-1, *self.image_size(), 3), self.image),)

    def image_size(self) -> tuple[Dimension, Dimension]:
        """Return height and width of the images that the model reads.

        If the model file has a fixed size, as ONNX files have, and it is at most `SHORTER_SIDE`, that size is used;
        otherwise `SIDE`.
        """
        loaded = self.context.loaded
        if loaded is not None and len(loaded.inputs) == 1 and len(loaded.inputs[0].shape) == 4:
            height, width = loaded.inputs[0].shape[2:]
            if height in _CROPS and width in _CROPS:
                return height, width
        return SIDE, SIDE

    def named_outputs(self, outputs: Any) -> Mapping[str, Any]:
        """Return the outputs of the model by the names that the steps know: of classifiers the first, as scores."""
        return {"probabilities": primary_output(outputs, "out")}

    def postprocess(self, outputs: Any) -> dict[str, Any]:
        """Make the declared outputs and no others."""
        found = self.made_by.run(self.named_outputs(outputs))
        found |= {name: found[own] for name, own in self.renamed.items()}
        other = {"output": self.objects, "label": self.label_classes}
        return {
            output.name: other[output.name](found) if output.name in other else found[output.name]
            for output in self.context.spec.outputs
        }

    def label_classes(self, found: Mapping[str, Array]) -> Array:
        """Return the label of each class, or the number of a class without a label."""
        return labels_of(np.asarray(found["class"]), self.labels or ())

    def objects(self, found: Mapping[str, Array]) -> list[Any]:
        """Return a value for each row that becomes JSON: an object of labels and probabilities."""
        rows = zip(self.label_classes(found).tolist(), found["score"].tolist(), strict=True)
        return [dict(zip(*row, strict=True)) for row in rows]
