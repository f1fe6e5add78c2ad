"""Inputs and outputs that a handler's own code declares: tensor types, attributes and hints."""

import subprocess
import sys
import textwrap

import pytest

from ksrv import Bytes, Float32, Image, Int64, Uint8
from ksrv.handlers.declared.tensor_types import TensorTypeError
from ksrv.handlers.runner import HandlerLoadError
from ksrv.repository.model_yaml import load_model_config
from ksrv.spec import ImageSpec, TensorSpec
from tests.support.paths import ROOT

FRIENDLY = ImageSpec(color="RGB", channels="convert", exif="apply", resize="pillow")


def shown(specs):
    return [(one.name, one.datatype, one.shape) for one in specs]


@pytest.mark.parametrize(
    ("made", "spec"),
    [
        (Float32, TensorSpec("t", "FP32", (-1,))),
        (Float32[1000], TensorSpec("t", "FP32", (-1, 1000))),
        (Int64[-1, "2:8"], TensorSpec("t", "INT64", (-1, -1, (2, 8)))),
        (Bytes, TensorSpec("t", "BYTES", (-1,))),
        (Float32[2, 2, 3], TensorSpec("t", "FP32", (-1, 2, 2, 3), ImageSpec())),
        (Image[8, 9, 3], TensorSpec("t", "FP32", (-1, 8, 9, 3), FRIENDLY)),
        (
            Image[8, 8, 1],
            TensorSpec("t", "FP32", (-1, 8, 8, 1), ImageSpec("GRAY", "convert", "apply", "pillow")),
        ),
        (
            Uint8[8, 8, 3].prepared(color="RGB", model_layout="NCHW"),
            TensorSpec("t", "UINT8", (-1, 8, 8, 3), ImageSpec(color="RGB", model_layout="NCHW")),
        ),
        (
            Image[4, 4, 3].prepared(scale=255, mean=[0.5], std=(0.5, 0.5, 0.5), shorter_side=4),
            TensorSpec(
                "t",
                "FP32",
                (-1, 4, 4, 3),
                ImageSpec(
                    "RGB",
                    "convert",
                    "apply",
                    "pillow",
                    4,
                    255.0,
                    (0.5,),
                    (0.5, 0.5, 0.5),
                ),
            ),
        ),
    ],
    ids=str,
)
def test_a_tensor_type_is_a_declared_tensor(made, spec, tmp_path):
    assert made.spec("t") == spec
    (tmp_path / "model.yaml").write_text(f"handler: m.n:H\ninputs: [{made.entry('t')}]\n")
    assert load_model_config(tmp_path).inputs == (spec,)  # model.yaml reads it the same


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Float32[0], r"Float32\[0\]: expected a positive number.*found 0"),
        (lambda: Float32[-2], "found -2"),
        (lambda: Float32[True], "found True"),
        (lambda: Float32[2.5], "found 2.5"),
        (lambda: Float32["9:3"], "found '9:3'"),
        (lambda: Float32[2**31], "found 2147483648"),
        (lambda: Float32[(2,) * 32], "32 sizes; at most 31"),
        (lambda: Image[224, 224], "an image has three sizes"),
        (lambda: Image.spec("x"), "Image needs its sizes"),
        (lambda: Image[224, 224, 2], "an image has 1, 3 or 4 channels; the shape says 2"),
        (lambda: Image[3, 224, 224], "an image has 1, 3 or 4 channels; the shape says 224"),
        (lambda: Float32[3].prepared(), "an image has three sizes"),
        (lambda: Bytes[2, 2, 3].prepared(), "images become FP32.*not BYTES"),
        (lambda: Image[2, 2, 3].prepared(colour="RGB"), "image has no key 'colour'; it has"),
        (lambda: Image[2, 2, 3].prepared(color="PINK"), "image: Invalid enum value 'PINK'"),
        (lambda: Image[2, 2, 3].prepared(mean=[1, 2]), "mean: has 2 numbers for 3 channels"),
        (lambda: Image[2, 2, 3].prepared(std=[0]), "std: must be above 0"),
        (lambda: Image[2, 2, 3].prepared(scale="many"), "image: Expected `float`, got `str`"),
        (lambda: Image[2, 2, 3].prepared(shorter_side=1), "shorter_side: 1 is smaller"),
    ],
)
def test_a_tensor_type_that_cannot_be_says_why(make, text):
    with pytest.raises(TensorTypeError, match=text):
        make()


DECLARED = {
    "hints": """
        def inference(self, x: Float32[2], n: Int64, batch, k=3) -> Float32[2]:
            return x
    """,
    "texts as hints": """
        def inference(self, x: "Float32[2]", n: "Int64", *, batch) -> "Float32[2]":
            return x
    """,
    "Annotated": """
        def inference(
            self, x: Annotated[object, Float32[2]], n: Annotated[object, 1, Int64]
        ) -> Annotated[object, Float32[2]]:
            return x
    """,
    "attributes": """
        inputs = {"x": Float32[2], "n": Int64}
        outputs = {"output": Float32[2]}
        def preprocess(self, batch):
            return batch["x"]
        def inference(self, x: Bytes) -> Bytes:
            return x
    """,
    "the last stage": """
        def inference(self, x: Float32[2], n: Int64) -> Bytes:
            return x
        def postprocess(self, outputs) -> Float32[2]:
            return outputs
    """,
    "a handle of its own": """
        inputs = {"x": Float32[2], "n": Int64}
        def handle(self, batch, context) -> Float32[2]:
            return batch["x"]
        def inference(self, x: Bytes) -> Bytes:
            return x
    """,
}
HEAD = """\
from typing import Annotated, TypedDict
from ksrv import BaseHandler, Bytes, Float32, Int64, settings
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("stages", DECLARED.values(), ids=DECLARED)
def test_a_class_declares_its_tensors(runner_of, stages, future):
    spec = runner_of(f"{future}{HEAD}class H(BaseHandler):{stages}").spec
    assert shown(spec.inputs) == [("x", "FP32", (-1, 2)), ("n", "INT64", (-1,))]
    assert shown(spec.outputs) == [("output", "FP32", (-1, 2))]


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_function_declares_its_tensors(runner_of, future):
    source = """
class Answer(TypedDict):
    mean: Float32
    words: "Bytes[2]"

def inference(x: Float32[2]) -> Answer:
    return {"mean": x.mean(axis=1), "words": [["a", "b"]] * len(x)}
"""
    spec = runner_of(future + HEAD + source).spec
    assert shown(spec.inputs) == [("x", "FP32", (-1, 2))]
    assert shown(spec.outputs) == [("mean", "FP32", (-1,)), ("words", "BYTES", (-1, 2))]


def test_the_settings_decorator_declares_tensors_of_a_function(runner_of):
    source = """
@settings(inputs={"x": Float32[2]}, outputs={"y": Float32[2]})
def inference(x):
    return x
"""
    spec = runner_of(HEAD + source).spec
    assert (shown(spec.inputs), shown(spec.outputs)) == (
        [("x", "FP32", (-1, 2))],
        [("y", "FP32", (-1, 2))],
    )


def test_the_settings_of_a_model_win(runner_of):
    spec = runner_of(
        f"{HEAD}def inference(x: Float32[2]) -> Float32[2]: return x",
        "inputs: [{name: x, datatype: FP64, shape: [-1, 3]}]",
    ).spec
    assert shown(spec.inputs) == [("x", "FP64", (-1, 3))]
    assert shown(spec.outputs) == [("output", "FP32", (-1, 2))]


def test_other_hints_declare_nothing(runner_of):
    source = f"""{HEAD}
import numpy as np
class H(BaseHandler):
    inputs = property(lambda self: 3)
    def inference(self, x: np.ndarray, y: "Missing" = None) -> "list[Missing]":
        return x
"""
    spec = runner_of(source).spec
    assert (spec.inputs, spec.outputs) == ((), ())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "def inference(x: Float32[2], y): return x",
            "the parameter 'y' has no tensor type, such as Float32\\[1000\\], but 'x' has",
        ),
        (
            "class H(BaseHandler):\n  inputs = {'x': [-1, 2]}",
            "inputs: expected names with tensor types, such as Float32\\[1000\\], found 'x'",
        ),
        (
            "class A(TypedDict):\n  a: Float32\n  b: int\ndef inference(x) -> A: return x",
            "outputs: expected names with tensor types.*found 'b'",
        ),
        ("def inference(x: Float32[0]): return x", "Float32\\[0\\]: expected a positive number"),
    ],
)
def test_a_declaration_that_cannot_be_is_the_models_error(runner_of, source, text):
    with pytest.raises(HandlerLoadError, match=text):
        runner_of(HEAD + source)


@pytest.mark.timeout(900)  # without its cache mypy reads numpy's stubs, and all of ksrv
def test_type_checkers_accept_the_hints(tmp_path):
    source = """
        from typing import TypedDict

        from ksrv import BaseHandler, Batch, Bytes, Float32, Image, serve, settings


        class Answer(TypedDict):
            scores: Float32[-1, "1:8"]


        @settings(batching={"max_batch_size": 8})
        class Cats(BaseHandler):
            inputs = {"image": Image[224, 224, 3].prepared(scale=255)}

            def inference(self, image: Image[224, 224, 3], batch: Batch) -> Float32[1000]:
                return image.mean(axis=(1, 2)) + len(batch.requests)

            def postprocess(self, outputs: Float32[1000]) -> Answer:
                return {"scores": outputs}


        def words(text: Bytes) -> Bytes[2]:
            return text


        if __name__ == "__main__":
            serve(Cats, words, http="127.0.0.1:0")
    """
    path = tmp_path / "app.py"
    path.write_text(textwrap.dedent(source).lstrip())
    cache = ROOT / "build" / "test-mypy"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
