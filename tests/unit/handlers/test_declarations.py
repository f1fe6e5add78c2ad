"""Inputs and outputs that a handler's code declares: tensor types, attributes and hints."""

import numpy as np
import pytest

from ksrv import Bytes, Float32, Image, Int64, Uint8
from ksrv.handlers.declared.tensor_types import TensorTypeError
from ksrv.handlers.runner import HandlerLoadError
from ksrv.model.spec import ImageSpec, TensorSpec
from ksrv.repository.model_yaml import load_model_config

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
            Image[-1, 8, 3],
            TensorSpec("t", "FP32", (-1, -1, 8, 3), ImageSpec("RGB", "convert", "apply", "none")),
        ),
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
        (lambda: Image[3, 224, 224], "an image has 1, 3 or 4 channels; the shape says 224"),
        (lambda: Float32[3].prepared(), "an image has three sizes"),
        (lambda: Bytes[2, 2, 3].prepared(), "images become FP32.*not BYTES"),
        (lambda: Image[2, 2, 3].prepared(colour="RGB"), "image has no key 'colour'; it has"),
        (lambda: Image[2, 2, 3].prepared(shorter_side=1), "shorter_side: 1 is smaller"),
    ],
)
def test_invalid_tensor_type_reports_the_cause(make, text):
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
    "attributes beside hints that declare nothing": """
        inputs = {"x": Float32[2], "n": Int64}
        outputs = {"output": Float32[2]}
        def inference(self, x: list[Float32[2]], n: Int64) -> list[Float32[2]]:
            return x
    """,
    "the last stage": """
        def inference(self, x: Float32[2], n: Int64) -> Bytes:
            return x
        def postprocess(self, outputs) -> Float32[2]:
            return outputs
    """,
    "a custom handle": """
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


def test_unrelated_hints_declare_nothing(runner_of):
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
def test_invalid_declaration_fails_the_load(runner_of, source, text):
    with pytest.raises(HandlerLoadError, match=text):
        runner_of(HEAD + source)


def optional(specs):
    return [one.name for one in specs if one.optional]


OPTIONAL = {
    "| None": "Float32[2] | None",
    "None |": "None | Float32[2]",
    "Optional": "Optional[Float32[2]]",
    "Union": "Union[None, Float32[2]]",
    "Annotated within": "Optional[Annotated[object, Float32[2]]]",
    "Annotated around": "Annotated[np.ndarray | None, Float32[2]]",
    "a text": '"Float32[2] | None"',
    "a text within": 'Optional["Float32[2]"]',
    "None alone": "Float32[2]",
}
IMPORTS = "import numpy as np\nfrom typing import Optional, Union\n"


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("hint", OPTIONAL.values(), ids=OPTIONAL)
def test_an_input_that_may_be_none_is_optional(runner_of, hint, future):
    source = f"{future}{HEAD}{IMPORTS}def inference(x: Int64, k: {hint} = None): return x"
    spec = runner_of(source).spec
    assert shown(spec.inputs) == [("x", "INT64", (-1,)), ("k", "FP32", (-1, 2))]
    assert optional(spec.inputs) == ["k"]


@pytest.mark.parametrize(
    "hint",
    [
        "dict[str, Float32[2]]",
        "tuple[Float32[2], Int64]",
        "list[Float32[2]]",
        "Union[Float32[2], np.ndarray, None]",
        "Union[Float32[2], Int64]",
        '"dict[str, Float32[2]]"',
        "Data",
        "Row",
        "Float32[2] if missing else Int64",
    ],
)
def test_nested_tensor_type_in_a_hint_is_refused(runner_of, hint):
    source = f"""{HEAD}{IMPORTS}
from dataclasses import dataclass

@dataclass
class Data:
    x: Float32[2]

class Row(TypedDict):
    x: "Float32[2]"

def inference(x: {hint}): return x
"""
    future = "from __future__ import annotations\n" if "missing" in hint else ""
    with pytest.raises(
        HandlerLoadError, match=r"inference: the parameter 'x': .*expected a tensor"
    ):
        runner_of(future + source)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("*x: Float32[2]", "'x' is for many inputs"),
        ("**x: Float32[2]", "'x' is for many inputs"),
        ("x: Float32[2] = 0.5", "'x' has the default 0.5, which no request would get; write x: Float32"),
        ("*, x: Float32[2]", r"inference\(.*x.*\) cannot be called with the declared inputs: .*first argument"),
        ("x: Float32[2], y: Int64, /", "cannot be called with the declared inputs: .*x, y by name"),
        ("batch: Float32[2]", "'batch' gets the batch, whatever its hint"),
        ("x: Float32[2] | Int64", r"Float32\[2\] | Int64: a tensor type can be combined with None alone"),
    ],
)  # fmt: skip
def test_parameters_that_no_request_can_fill_are_refused(runner_of, parameters, text):
    with pytest.raises(HandlerLoadError, match=text):
        runner_of(f"{HEAD}def inference({parameters}): return 1")


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("handle(self, x: Float32[2])", r"Own.handle\(x.*\) cannot be called: .*it gets \(batch, context\); inputs by name"),
        ("initialize(self)", r"Own.initialize\(\) cannot be called: .*it gets \(context\)"),
        ("preprocess(self, batch, context)", r"Own.preprocess\(batch, context\) cannot be called: .*it gets \(batch\)"),

    ],
)  # fmt: skip
def test_stages_that_no_batch_can_reach_are_refused(runner_of, stage, text):
    source = f"from ksrv import BaseHandler\n\nclass Own(BaseHandler):\n    def {stage}: return x"
    with pytest.raises(HandlerLoadError, match=text):
        runner_of(HEAD + source)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("preproces", "preprocess"),
        ("pre_process", "preprocess"),
        ("preprocessing", "preprocess"),
        ("postproces", "postprocess"),
        ("initialise", "initialize"),
        ("inferance", "inference"),
    ],
)
def test_misspelt_stage_is_refused(runner_of, name, meant):
    rest = "" if meant == "inference" else "    def inference(self, x): return x\n"
    source = f"class Own(BaseHandler):\n    def {name}(self, x): return x\n{rest}"
    with pytest.raises(
        HandlerLoadError, match=f"Own.{name} is not a stage.*did you mean {meant}\\?"
    ):
        runner_of(HEAD + source)


@pytest.mark.parametrize(
    "methods",
    [
        "def preproces(self, x): return x\n  def inference(self, x): return self.preproces(x)",
        "def _preproces(self, x): return x\n  def inference(self, x): return x",
        "def preprocess_image(self, x): return x\n  def inference(self, x): return x",
        "def preproces(self, b): return b\n  def preprocess(self, b): return b\n  def inference(self, x): return x",
    ],
)
def test_helpers_with_names_like_stages_are_taken(runner_of, methods):
    runner_of(f"{HEAD}class Own(BaseHandler):\n  {methods}\n")


@pytest.mark.parametrize(
    "stage", ["handle(self, *both)", "preprocess(self, batch, extra=1)"]
)  # fmt: skip
def test_stages_with_optional_parameters_are_accepted(runner_of, stage):
    runner_of(
        f"from ksrv import BaseHandler\n\nclass Own(BaseHandler):\n    def {stage}: return 1",
        "inputs: [{name: x, datatype: BYTES, shape: [-1]}]\n",
    )


@pytest.mark.parametrize("parameters", ["x, /", "*inputs", "x, batch", "x, *, batch=None", "batch"])
def test_parameters_that_requests_can_fill_are_accepted(runner_of, parameters):
    runner_of(
        f"def inference({parameters}): return 1",
        "inputs: [{name: x, datatype: BYTES, shape: [-1]}]\n",
    )


def test_input_without_a_parameter_is_refused(runner_of):
    tensor = "{{name: {}, datatype: FP32, shape: [-1]}}"
    yaml = f"inputs: [{tensor.format('a')}, {tensor.format('b')}]"
    with pytest.raises(
        HandlerLoadError, match=r"inference\(a, c\) cannot be called .* a, b by name"
    ):
        runner_of("def inference(a, c): return a", yaml)


STREAMS = [
    "collections.abc.Iterator[Float32[2]]",
    "typing.Generator[Float32[2], None, None]",
    "typing.AsyncIterator['Float32[2]']",
    "'collections.abc.Iterable[Float32[2]]'",
]


@pytest.mark.parametrize("hint", STREAMS)
def test_the_parts_of_a_stream_are_outputs(runner_of, hint):
    source = f"import collections.abc, typing\n{HEAD}def inference(x: Int64) -> {hint}: return x"
    assert shown(runner_of(source).spec.outputs) == [("output", "FP32", (-1, 2))]


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        ("tuple[Float32[2], Int64]", "expected a tensor type.* TypedDict that names several"),
        ("dict[str, Float32[2]]", "TypedDict"),
        ("Data", "Data is not a declaration"),
        ("Float32[2] | None", "not a declaration"),
        ("Sparse", "Sparse.b is NotRequired; an answer has every declared output"),
        ("Open", "Open.b may be None"),
    ],
)
def test_a_return_hint_that_declares_no_outputs_is_refused(runner_of, hint, text):
    source = f"""{HEAD}
from dataclasses import dataclass
from typing import NotRequired, Required

@dataclass
class Data:
    x: Float32[2]

class Sparse(TypedDict):
    a: Required[Float32[2]]
    b: NotRequired[Int64]

class Open(TypedDict):
    a: Float32[2]
    b: Int64 | None

def inference(x) -> {hint}: return x
"""
    with pytest.raises(HandlerLoadError, match=text):
        runner_of(source)


def test_type_checking_imports_are_resolved_or_ignored(runner_of):
    source = """
from __future__ import annotations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xml.dom.minidom
    import ksrv as k
    from ksrv import Float32, Int64 as Number
    from PIL import Image

def inference(x: Float32[2], n: Number, m: k.Float32[3] | None = None, *,
        document: xml.dom.minidom.Document = None, often: "how many times" = 2,
        image: Image.Image = None) -> Float32[2]:
    return x
"""
    spec = runner_of(source).spec
    assert shown(spec.inputs) == [
        ("x", "FP32", (-1, 2)),
        ("n", "INT64", (-1,)),
        ("m", "FP32", (-1, 3)),
    ]
    assert shown(spec.outputs) == [("output", "FP32", (-1, 2))]


def test_sizes_may_be_integers_of_numpy():
    assert Float32[np.int64(3), np.uint8(4)] == Float32[3, 4]
    with pytest.raises(TensorTypeError, match="found"):
        Float32[np.float32(3)]
