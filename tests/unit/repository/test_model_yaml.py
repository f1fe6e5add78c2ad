"""`model.yaml`: every key, and errors that name file, line and key."""

import textwrap

import pytest

from ksrv.model.config import JoinPolicy, VersionPolicy
from ksrv.model.spec import ImageSpec, OutputImageSpec, TensorSpec
from ksrv.repository.model_yaml import ConfigError, load_model_config

EVERYTHING = """\
handler: handler.py:Cats
model: weights.pt
class: net.py:Net
device: cuda:1
inputs:
  - {name: image, datatype: FP32, shape: [-1, 224, 224, 3],
     image: {color: RGB, resize: pillow, shorter_side: 256, scale: 255, mean: [0.485, 0.456, 0.406],
             std: [0.229, 0.224, 0.225], model_layout: NCHW, exif: apply, channels: convert,
             arithmetic: exact, reduced: auto, formats: [png]}}
  - {name: size, datatype: INT64, shape: [-1, "1:4", -1, 2]}
outputs:
  - {name: probabilities, datatype: FP32, shape: [-1, 1000]}
  - {name: mask, datatype: BOOL, shape: [-1, 8, 8], image: {quality: 50, color: BGR}}
labels: index_to_name.json
batching: {max_batch_size: 8, max_delay_ms: 2.5, split: true}
executor: process
retry: false
instances: 2
threads: 3
timeout_ms: 1000
queue_size: 7
warmup: [one.jpg, more/two.png]
version_policy: {latest: 2}
parameters: {any: thing, list: [1, {deep: null}]}
pt2: {compile: {enable: true, backend: inductor, mode: reduce-overhead}}
envelope: kservev2
env: {OMP_NUM_THREADS: 1, WHO: me}
matmul_precision: high
"""


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "cats"
    (model / "more").mkdir(parents=True)
    for name in ("handler.py", "net.py", "weights.pt", "one.jpg", "more/two.png", "m.onnx"):
        (model / name).write_bytes(b"")
    (model / "index_to_name.json").write_text('{"0": "cat", "2": ["n01", "dog"]}')
    return model


def load(folder, text):
    (folder / "model.yaml").write_text(textwrap.dedent(text))
    return load_model_config(folder)


def test_every_key_is_read(folder):
    config = load(folder, EVERYTHING)
    assert config.handler == f"{folder}/handler.py:Cats"
    assert config.model == f"{folder}/weights.pt"
    assert config.model_class == f"{folder}/net.py:Net"
    assert config.device == "cuda:1"
    assert config.inputs == (
        TensorSpec(
            "image",
            "FP32",
            (-1, 224, 224, 3),
            ImageSpec(
                color="RGB",
                channels="convert",
                exif="apply",
                resize="pillow",
                shorter_side=256,
                scale=255.0,
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
                arithmetic="exact",
                reduced="auto",
                formats=("png",),
                model_layout="NCHW",
            ),
        ),
        TensorSpec("size", "INT64", (-1, (1, 4), -1, 2)),
    )
    assert config.outputs == (
        TensorSpec("probabilities", "FP32", (-1, 1000)),
        TensorSpec(
            "mask", "BOOL", (-1, 8, 8), output_image=OutputImageSpec(color="BGR", quality=50)
        ),
    )
    assert config.labels == ("cat", "1", "dog")
    assert config.batching == JoinPolicy(max_batch_size=8, max_delay_ms=2.5, split=True)
    assert (config.executor, config.retry, config.instances) == ("process", False, 2)
    assert (config.threads, config.timeout_ms, config.queue_size) == (3, 1000, 7)
    assert config.warmup == (f"{folder}/one.jpg", f"{folder}/more/two.png")
    assert config.version_policy == VersionPolicy(latest=2)
    assert config.parameters == {"any": "thing", "list": [1, {"deep": None}]}
    assert config.pt2 == {
        "compile": {"enable": True, "backend": "inductor", "mode": "reduce-overhead"}
    }
    assert config.envelope == "kservev2"
    assert config.env == {"OMP_NUM_THREADS": "1", "WHO": "me"}
    assert config.matmul_precision == "high"
    spec = config.spec("cats", "3")
    assert (spec.name, spec.version, spec.max_batch_size) == ("cats", "3", 8)
    assert spec.labels == ("cat", "1", "dog")


@pytest.mark.parametrize(
    ("more", "instances"),
    [
        ("", 16),
        ("instances: 3\n", 3),
        ("executor: process\n", 1),
        ("model: m.onnx\n", 1),
        ("class: net.py:Net\n", 1),
    ],
)
def test_handler_that_calls_models_has_several_instances(folder, more, instances):
    config = load(folder, f"handler: handler.py\ncalls: [detector, recogniser]\n{more}")
    assert config.needs == (("detector", ""), ("recogniser", ""))
    assert config.instances == instances


@pytest.mark.parametrize("off", ["off", "false", "'off'"])
def test_without_batching_shapes_are_whole(folder, off):
    tensors = "[{name: x, datatype: FP32, shape: [-1, 3]}, {name: y, datatype: FP32, shape: [2]}]"
    config = load(
        folder, f"handler: handler.py\ninputs: {tensors}\noutputs: {tensors}\nbatching: {off}\n"
    )
    assert (config.batching, config.counts_rows) == (None, False)
    assert [one.batched for one in (*config.inputs, *config.outputs)] == [False] * 4
    assert [one.wire_shape for one in config.inputs] == [[-1, 3], [2]]
    assert load(folder, f"handler: handler.py\ninputs: {tensors}\n").inputs[0].batched


def test_an_image_batch_without_a_section_has_the_defaults(folder):
    config = load(
        folder,
        """\
        handler: handler.py
        inputs:
          - {name: a, datatype: FP32, shape: [-1, 8, 8, 3]}
          - {name: b, datatype: UINT8, shape: [-1, 8, 8, 1]}
          - {name: c, datatype: FP32, shape: [-1, 8, 8, 2]}
          - {name: d, datatype: FP32, shape: [-1, 8, 3]}
          - {name: e, datatype: INT64, shape: [-1, 8, 8, 3]}
        """,
    )
    assert [one.image for one in config.inputs] == [ImageSpec(), ImageSpec(), None, None, None]


def test_yaml_scalars_of_other_types_are_explained(folder):
    config = load(
        folder,
        image("scale: 1e2, mean: [1e-3]", "[-1, 30:45, 1:59, 3]") + "parameters: {d: 2026-01-02}",
    )
    [spec] = config.inputs
    assert spec.shape == (-1, (30, 45), (1, 59), 3)
    assert (spec.image.scale, spec.image.mean) == (100.0, (0.001,))
    assert config.parameters == {"d": "2026-01-02"}


@pytest.mark.parametrize("word", ["off", "'off'"])
def test_off_is_a_word_although_yaml_takes_it_for_false(folder, word):
    config = load(folder, image(f"reduced: {word}"))
    assert config.inputs[0].image.reduced == "off"


def output_image(keys, shape="[-1, 8, 8]", datatype="UINT8"):
    tensor = f"{{name: y, datatype: {datatype}, shape: {shape}, image: {{{keys}}}}}"
    return f"handler: handler.py\noutputs:\n  - {tensor}\n"


def image(section, shape="[-1, 8, 8, 3]", datatype="FP32"):
    return (
        f"handler: handler.py\ninputs:\n"
        f"  - {{name: x, datatype: {datatype}, shape: {shape},\n     image: {{{section}}}}}\n"
    )


BAD = {
    "unknown key": ("handler: handler.py\nbatchng: {}\n", 2, "batchng", "did you mean batching"),
    "unknown key, nothing near": ("handler: handler.py\nzzzz: 1\n", 2, "zzzz", "known here are"),
    "deep unknown key": (image("colour: RGB"), 4, "inputs[0].image.colour", "did you mean color"),
    "near miss of a word": (image("resize: bilinear"), 4, "inputs[0].image.resize", "linear"),
    "resize with a free size": (
        image("resize: area", "[-1, -1, -1, 3]"),
        4,
        "inputs[0].image.resize",
        "the height and the width are free (-1), so images keep their size; write resize: none, add shorter_side",
    ),
    "pad without a letterbox": (image("pad: 0"), 4, "inputs[0].image.pad", "is for resize: letterbox"),
    "pad above 8 bits": (image("resize: letterbox, pad: 256"), 4, "inputs[0].image.pad", "from 0 to 255"),
    "pad count": (image("resize: letterbox, pad: [1, 2]"), 4, "inputs[0].image.pad", "2 numbers for 3"),
    "pad type": (image("resize: letterbox, pad: grey"), 4, "inputs[0].image.pad", "a number or a list of numbers"),
    "align without a letterbox": (image("align: start"), 4, "inputs[0].image.align", "is for resize: letterbox"),
    "align word": (image("align: left"), 4, "inputs[0].image.align", "'left'"),
    "rounding word": (image("rounding: floor"), 4, "inputs[0].image.rounding", "'floor'"),
    "resize_to, one number": (image("resize_to: 9"), 4, "inputs[0].image.resize_to", "a height and a width"),
    "resize_to, three numbers": (image("resize_to: [9, 9, 9]"), 4, "inputs[0].image.resize_to", "at most 2"),
    "resize_to, zero": (image("resize_to: [9, 0]"), 4, "inputs[0].image.resize_to[1]", "found 0"),
    "small resize_to": (image("resize_to: [9, 7]"), 4, "inputs[0].image.resize_to", "[9, 7] is smaller than the crop of 8 x 8"),
    "resize_to, free crop": (image("resize_to: [9, 9]", "[-1, -1, -1, 3]"), 4, "inputs[0].image.resize_to", "centre crop"),
    "resize_to and shorter_side": (image("resize_to: [9, 9], shorter_side: 9"), 4, "inputs[0].image.resize_to", "one of the two"),
    "min_side of a fixed size": (image("min_side: 9"), 4, "inputs[0].image.min_side", "the shape names"),
    "max_side of a fixed height": (image("max_side: 9", "[-1, 8, -1, 3]"), 4, "inputs[0].image.max_side", "open height and width"),
    "max_side, letterbox in ranges": (image("resize: letterbox, max_side: 9", '[-1, "8:9", "8:9", 3]'), 4,
                                      "inputs[0].image.max_side", "bounds"),
    "multiple of a fixed size": (image("multiple: 32"), 4, "inputs[0].image.multiple", "the shape names"),
    "multiple without a resize": (image("resize: none, multiple: 32", "[-1, -1, -1, 3]"), 4, "inputs[0].image.multiple", "nothing is resized"),
    "multiple zero": (image("multiple: 0", "[-1, -1, -1, 3]"), 4, "inputs[0].image.multiple", "1 to 4096"),
    "case of a word": (image("color: rgb"), 4, "inputs[0].image.color", "'rgb'"),
    "duplicate": ("handler: handler.py\nretry: true\nretry: false\n", 3, "retry", "line 2"),
    "wrong type": ("handler: handler.py\ninstances: two\n", 2, "instances", "whole number"),
    "bool is not a number": ("handler: handler.py\ninstances: true\n", 2, "instances", "found true"),
    "out of range": ("handler: handler.py\nqueue_size: 0\n", 2, "queue_size", "1 to 1000000"),
    "not a flag": ("handler: handler.py\nretry: 1\n", 2, "retry", "true or false"),
    "missing handler file": ("handler: none.py\n", 1, "handler", "'none.py'"),
    "missing model file": ("\n\nmodel: none.pt\n", 3, "model", "'none.pt'"),
    "missing label file": ("model: m.onnx\nlabels: none.json\n", 2, "labels", "'none.json'"),
    "missing warmup file": ("model: m.onnx\nwarmup: [no.jpg]\n", 2, "warmup", "'no.jpg'"),
    "empty warmup": ("model: m.onnx\nwarmup: []\n", 2, "warmup", "sample files"),
    "handler word": ("handler: image_clasifier\n", 1, "handler", "image_classifier"),
    "handler syntax": ("handler: handler.py:a-b\n", 1, "handler", "FILE.py:NAME"),
    "suffix": ("model: handler.py\n", 1, "model", ".onnx"),
    "class without name": ("model: weights.pt\nclass: net.py\n", 2, "class", "FILE.py:NAME"),
    "class beside onnx": ("model: m.onnx\nclass: net.py:Net\n", 2, "class", "not a state_dict"),
    "absolute path": ("model: /etc/m.onnx\n", 1, "model", "leaves"),
    "parent path": ("model: ../m.onnx\n", 1, "model", "leaves"),
    "calls no list": ("handler: handler.py\ncalls: detector\n", 2, "calls", "a list of names of models"),
    "calls nobody": ("handler: handler.py\ncalls: []\n", 2, "calls", "a list of names of models"),
    "calls a number": ("handler: handler.py\ncalls: [1]\n", 2, "calls[0]", "found 1"),
    "calls without a name": ("handler: handler.py\ncalls: ['']\n", 2, "calls[0]", "found ''"),
    "calls twice": ("handler: handler.py\ncalls: [a, b, a]\n", 2, "calls[2]", "'a' is named twice"),
    "calls of a file": ("model: m.onnx\ncalls: [a]\n", 2, "calls", "name it under handler:"),
    "calls of a built-in handler": ("handler: image_classifier\nmodel: m.onnx\ncalls: [a]\n", 3, "calls", "handler:"),
    "neither": ("device: cpu\n", 1, "", "name a handler: or a model:"),
    "empty": ("", None, "", "name a handler: or a model:"),
    "a list": ("- 1\n", 1, "", "keys and values"),
    "device": ("handler: handler.py\ndevice: gpu\n", 2, "device", "cuda:N"),
    "no name": ("handler: handler.py\ninputs:\n  - {datatype: FP32, shape: [1]}\n", 3,
                "inputs[0].name", "needs a name"),
    "no datatype": ("handler: handler.py\ninputs:\n  - {name: x, shape: [1]}\n", 3,
                    "inputs[0].datatype", "needs a datatype"),
    "datatype": ("handler: handler.py\ninputs:\n  - {name: x, datatype: float32, shape: [1]}\n", 3,
                 "inputs[0].datatype", "FP32"),
    "twice": ("handler: handler.py\ninputs:\n  - {name: x, datatype: FP32, shape: [1]}\n"
              "  - {name: x, datatype: FP32, shape: [1]}\n", 4, "inputs[1].name", "twice"),
    "inputs no list": ("handler: handler.py\ninputs: {name: x}\n", 2, "inputs", "list"),
    "shape no list": ("handler: handler.py\ninputs:\n  - {name: x, datatype: FP32, shape: 3}\n", 3,
                      "inputs[0].shape", "list of dimensions"),
    "half a character": ('handler: handler.py\ninputs:\n  - {name: "\\ud800x", datatype: FP32, shape: [1]}\n', 3,
                         "inputs[0].name", "half of a surrogate pair"),
    "half a character in a key": ('handler: handler.py\nparameters: {"\\ud800": 1}\n', 2, "parameters",
                                  "half of a surrogate pair"),
    "zero": (image("", "[-1, 0, 8, 3]"), 3, "inputs[0].shape[1]", "found 0"),
    "minus two": (image("", "[-2, 8, 8, 3]"), 3, "inputs[0].shape[0]", "found -2"),
    "backward range": (image("", '[-1, "9:8", 8, 3]'), 3, "inputs[0].shape[1]", "'9:8'"),
    "bool in a shape": (image("", "[true, 8, 8, 3]"), 3, "inputs[0].shape[0]", "found true"),
    "image rank": (image("color: RGB", "[-1, 8, 3]"), 4, "inputs[0].image", "3 dimensions"),
    "image datatype": (image("", datatype="INT64"), 4, "inputs[0].image", "INT64"),
    "gray with 3": (image("color: GRAY"), 4, "inputs[0].image.color", "1 channel"),
    "rgb with 1": (image("color: RGB", "[-1, 8, 8, 1]"), 4, "inputs[0].image.color", "3 channels"),
    "five channels": (image("", "[-1, 8, 8, 5]"), 4, "inputs[0].image", "5"),
    "mean count": (image("mean: [1, 2]"), 4, "inputs[0].image.mean", "2 numbers for 3"),
    "mean type": (image("mean: [a]"), 4, "inputs[0].image.mean", "list of numbers"),
    "mean nan": (image("mean: [.nan]"), 4, "inputs[0].image.mean", "list of numbers"),
    "std zero": (image("std: [0, 1, 1]"), 4, "inputs[0].image.std", "above 0"),
    "scale zero": (image("scale: 0"), 4, "inputs[0].image.scale", "found 0"),
    "scale of integers": (image("scale: 255", datatype="UINT8"), 4, "inputs[0].image.scale",
                          "floating-point"),
    "small shorter side": (image("shorter_side: 7"), 4, "inputs[0].image.shorter_side", "8 x 8"),
    "shorter side, free crop": (image("shorter_side: 9", "[-1, -1, 8, 3]"), 4,
                                "inputs[0].image.shorter_side", "centre crop"),
    "shorter side, letterbox": (image("shorter_side: 9, resize: letterbox"), 4,
                                "inputs[0].image.shorter_side", "letterbox"),
    "formats": (image("formats: [exe]"), 4, "inputs[0].image.formats", "jpeg, png"),
    "no formats": (image("formats: []"), 4, "inputs[0].image.formats", "jpeg, png"),
    "output image rank": (output_image("", "[-1, 8]"), 3, "outputs[0].image", "[-1, H, W]"),
    "output image without batch": (output_image("", "[1, 8, 8]"), 3, "outputs[0].image", "[-1, H, W]"),
    "output image datatype": (output_image("", datatype="FP32"), 3, "outputs[0].image", "UINT8"),
    "output image channels": (output_image("", "[-1, 8, 8, 2]"), 3, "outputs[0].image", "says 2"),
    "output image of 16 bits": (output_image("formats: [jpeg]", datatype="UINT16"), 3,
                                "outputs[0].image.formats", "8 bits"),
    "output image with alpha": (output_image("formats: [png, jpeg]", "[-1, 8, 8, 4]"), 3,
                                "outputs[0].image.formats", "no alpha"),
    "output image format": (output_image("formats: [webp]"), 3, "outputs[0].image.formats", "png"),
    "output image quality": (output_image("quality: 0"), 3, "outputs[0].image.quality", "1 to 100"),
    "output image resize": (output_image("resize: area"), 3, "outputs[0].image.resize", "color"),
    "batching without size": ("handler: handler.py\nbatching: {max_delay_ms: 1}\n", 2,
                              "batching.max_batch_size", "needs"),
    "batching of a fixed input": (
        "handler: handler.py\ninputs:\n  - {name: x, datatype: FP32, shape: [4]}\n"
        "batching: {max_batch_size: 2}\n", 4, "batching", "'x'"),
    "batching that is on": ("handler: handler.py\nbatching: on\n", 2, "batching", "expected off"),
    "batching by number": ("handler: handler.py\nbatching: 8\n", 2, "batching", "expected off, or keys"),
    "negative rate": ("handler: handler.py\nrate_limit: -1\n", 2, "rate_limit", "a number from 0 to 1e+09"),
    "negative delay": ("handler: handler.py\nbatching: {max_batch_size: 2, max_delay_ms: -1}\n", 2,
                       "batching.max_delay_ms", "found -1"),
    "policy": ("handler: handler.py\nversion_policy: newest\n", 2, "version_policy", "latest"),
    "two policies": ("handler: handler.py\nversion_policy: {latest: 1, specific: [1]}\n", 2,
                     "version_policy", "latest"),
    "policy key": ("handler: handler.py\nversion_policy: {lates: 1}\n", 2, "version_policy.lates",
                   "did you mean latest"),
    "no versions": ("handler: handler.py\nversion_policy: {specific: []}\n", 2,
                    "version_policy.specific", "specific"),
    "parameters": ("handler: handler.py\nparameters: [1]\n", 2, "parameters", "keys and values"),
    "number as parameter key": ("handler: handler.py\nparameters: {1: a}\n", 2, "parameters.1",
                                "quotes"),
    "infinite parameter": ("handler: handler.py\nparameters: {a: [.inf]}\n", 2, "parameters.a[0]",
                           "finite"),
    "pt2": ("handler: handler.py\npt2: 3\n", 2, "pt2", "keys and values"),
    "pt2 key": ("handler: handler.py\npt2:\n  compile:\n    enable: true\n    bakend: x\n", 5,
                "pt2.compile.bakend", "backend"),
    "pt2 beside": ("handler: handler.py\npt2: {compile: {enable: true},\n  mode: default}\n", 3,
                   "pt2.mode", "together with compile"),
    "env": ("handler: handler.py\nenv: {A: [1]}\n", 2, "env.A", "text or a number"),
    "env name": ("handler: handler.py\nenv: {A=B: c}\n", 2, "env.A=B", "variable"),
    "env list": ("handler: handler.py\nenv: [A]\n", 2, "env", "variables"),
    "precision": ("handler: handler.py\nmatmul_precision: low\n", 2, "matmul_precision", "highest"),
    "tag": ("handler: !!python/object:os.system x\n", 1, "handler", "tag"),
    "mapping tag": ("handler: handler.py\nparameters: !!set {a: }\n", 2, "parameters", "tag"),
    "binary": ("handler: handler.py\nparameters: {a: !!binary aGk=}\n", 2, "parameters.a", "tag"),
    "merge": ("handler: handler.py\nparameters: {<<: {a: 1}}\n", 2, "parameters.<<", "merge"),
    "syntax": ("handler: handler.py\ninputs: [\n", 3, "", ""),
    "two documents": ("handler: handler.py\n---\nhandler: handler.py\n", 2, "", "document"),
    "recursive alias": ("handler: handler.py\nparameters: &a {a: *a}\n", None, "parameters", "deep"),
    "key that is a list": ("handler: handler.py\nparameters: {[1]: 2}\n", 2, "parameters", "key"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_names_file_line_and_key(folder, case):
    """The case "tag" is CVE-2022-1471, code in YAML."""
    text, line, key, words = BAD[case]
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'model.yaml'}")
    if line is not None:
        assert f"model.yaml, line {line}: " in message
    if key:
        assert f": {key}" in message
    assert words in message


def test_growth_through_aliases_is_refused(folder):
    lines = ["handler: handler.py", "parameters:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        lines.append(f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    with pytest.raises(ConfigError, match="values"):
        load(folder, "\n".join(lines))


def test_deep_nesting_is_refused(folder):
    with pytest.raises(ConfigError, match="deep"):
        load(folder, "handler: handler.py\nparameters: " + "[" * 5000 + "]" * 5000)


def test_file_that_is_not_text_is_refused(folder):
    (folder / "model.yaml").write_bytes(b"handler: handler.py\nlabels: \xff\n")
    with pytest.raises(ConfigError, match=r"model.yaml, line 2: not UTF-8"):
        load_model_config(folder)


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    (tmp_path / "secret.onnx").write_bytes(b"")
    (folder / "out.onnx").symlink_to(tmp_path / "secret.onnx")
    with pytest.raises(ConfigError, match=r"line 1: model: .*leads out"):
        load(folder, "model: out.onnx\n")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('["a", "b"]', ("a", "b")),
        ('{"1": "b", "0": ["x", "a"]}', ("a", "b")),
        ('{"object_type_names": ["a", "b"]}', ("a", "b")),
        ("{}", ()),
    ],
)
def test_label_files(folder, text, labels):
    (folder / "l.json").write_text(text)
    assert load(folder, "model: m.onnx\nlabels: l.json\n").labels == labels


def test_a_text_of_labels(folder):
    (folder / "l.txt").write_text("cat\n\ndog\n")
    assert load(folder, "model: m.onnx\nlabels: l.txt\n").labels == ("cat", "dog")


@pytest.mark.parametrize(
    "text", ["3", "{", '{"a": "b"}', '{"0": 1}', '{"0": []}', '{"99999999": "x"}']
)
def test_bad_label_files(folder, text):
    (folder / "l.json").write_text(text)
    with pytest.raises(ConfigError, match=r"line 2: labels: l.json: "):
        load(folder, "model: m.onnx\nlabels: l.json\n")
