"""The built-in handlers give TorchServe's recorded numbers, for whole batches, as JSON and tensors."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from ksrv.errors import InferenceError
from ksrv.handlers.runner import HandlerLoadError
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.model_files.onnx_models import write_graph
from tests.support.torchserve.golden_models import (
    Detector,
    Segmenter,
    fill,
    golden_classifier,
    picture,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class ListDetector(torch.nn.Module):
    """As torchvision's scripted detectors: a list of images in, losses and findings out."""

    def forward(
        self, images: list[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        losses: dict[str, torch.Tensor] = {}
        out: list[dict[str, torch.Tensor]] = []
        for image in images:
            found = {
                "boxes": torch.zeros(1, 4) + image.shape[2],
                "labels": torch.tensor([3]),
                "scores": torch.tensor([0.75]),
            }
            out.append(found)
        return losses, out


@pytest.fixture(scope="module")
def prepared():
    """The golden picture as Pillow and torchvision would prepare it, [1, 224, 224, 3]."""
    small = picture().resize((341, 256), Image.Resampling.BILINEAR)
    left, top = round((341 - 224) / 2.0), round((256 - 224) / 2.0)
    pixels = np.asarray(small)[top : top + 224, left : left + 224]
    return (((pixels.astype(np.float32) / np.float32(255)) - MEAN) / STD)[None]


@pytest.fixture
def serve(tmp_path, loaded):
    """Load a model with a built-in handler: serve("image_classifier", module, config)."""

    def make(handler, module, config="", labels=10):
        folder = tmp_path / handler
        folder.mkdir(exist_ok=True)
        scripted = torch.jit.script(module.eval())
        scripted.save(str(folder / "model.pt"))
        if labels:
            names = {str(i): [f"n0{i}", f"class{i}"] for i in range(labels)}
            (folder / "index_to_name.json").write_text(json.dumps(names))
            config += "\nlabels: index_to_name.json\n"
        (folder / "model.yaml").write_text(f"handler: {handler}\nmodel: model.pt\n{config}")
        runner = loaded(folder)
        return runner, runner.spec

    return make


def run(runner, array, explain=False, parameters=()):
    rows = len(array)
    per = dict(parameters)
    requests = [RequestPart(slice(i, i + 1), f"r{i}", per.get(i, {})) for i in range(rows)]
    tensor = Tensor("image", "FP32", array.shape, array)
    answer = runner.run(ExecutorInputs({"image": tensor}, rows, requests, explain))
    return {one.name: one for one in answer.tensors}, answer


def test_image_classifier_gives_the_recorded_answer(serve, prepared):
    runner, spec = serve("image_classifier", golden_classifier())
    [declared] = spec.inputs
    assert (declared.name, declared.datatype, declared.shape) == (
        "image",
        "FP32",
        (-1, 224, 224, 3),
    )
    assert (declared.image.resize, declared.image.shorter_side) == ("pillow", 256)
    assert (declared.image.exif, declared.image.channels) == ("apply", "convert")
    assert [one.name for one in spec.outputs] == ["output", "label", "class", "probability"]
    outputs, _ = run(runner, np.concatenate([prepared, np.zeros_like(prepared)]))
    first, second = (json.loads(text) for text in outputs["output"].data)
    recorded = {  # H01
        "class5": 0.13338130712509155,
        "class2": 0.11911416053771973,
        "class7": 0.11674169450998306,
        "class1": 0.10074906796216965,
        "class9": 0.10068706423044205,
    }
    assert list(first) == list(recorded)
    assert first == pytest.approx(recorded, abs=1e-6)
    zeros = {  # H06
        "class2": 0.12540113925933838,
        "class5": 0.12469462305307388,
        "class1": 0.10617277026176453,
        "class4": 0.1055745929479599,
        "class7": 0.10497977584600449,
    }
    assert list(second) == list(zeros)
    assert second == pytest.approx(zeros, abs=1e-6)
    assert outputs["class"].data.tolist() == [[5, 2, 7, 1, 9], [2, 5, 1, 4, 7]]
    assert outputs["label"].shape == (2, 5)
    assert outputs["label"].data[:2] == [b"class5", b"class2"]
    np.testing.assert_allclose(
        outputs["probability"].data[0], list(recorded.values()), atol=1e-6, rtol=0
    )


def test_image_classifier_without_labels_has_numbers(serve, prepared):  # H07
    runner, _ = serve("image_classifier", golden_classifier(), labels=0)
    outputs, _ = run(runner, prepared)
    assert list(json.loads(outputs["output"].data[0])) == ["5", "2", "7", "1", "9"]


@pytest.mark.parametrize(("topk", "count"), [(2, 2), (99, 10)])
def test_topk_is_a_parameter(serve, prepared, topk, count):
    runner, _ = serve("image_classifier", golden_classifier(), f"parameters: {{topk: {topk}}}")
    assert run(runner, prepared)[0]["class"].shape == (1, count)


@pytest.mark.parametrize("topk", ["0", "many", "1.5", "true"])
def test_a_topk_that_is_no_number_fails_the_model(serve, topk):
    with pytest.raises(HandlerLoadError, match="topk"):
        serve("image_classifier", golden_classifier(), f"parameters: {{topk: {topk}}}")


def test_outputs_are_chosen_in_model_yaml(serve, prepared):
    runner, _ = serve(
        "image_classifier",
        golden_classifier(),
        "outputs: [{name: probabilities, datatype: FP32, shape: [-1, 10]}]",
    )
    outputs, _ = run(runner, prepared)
    assert list(outputs) == ["probabilities"]
    assert outputs["probabilities"].data.sum() == pytest.approx(1, abs=1e-5)


def test_an_output_that_is_not_offered_fails_the_model(serve):
    with pytest.raises(HandlerLoadError, match=r"'logits'.*probabilities"):
        serve(
            "image_classifier",
            golden_classifier(),
            "outputs: [{name: logits, datatype: FP32, shape: [-1, 10]}]",
        )


def test_explanations_add_up_to_the_difference_from_black(serve, prepared):
    module = golden_classifier()
    runner, _ = serve("image_classifier", module)
    outputs, answer = run(
        runner, np.repeat(prepared, 3, axis=0), True, {1: {"target": 3}, 2: {"target": 10}}
    )
    assert list(answer.failures) == [2]
    assert "0 to 9" in answer.failures[2].message
    attributions = outputs["attributions"].data
    assert attributions.shape == (3, 3, 224, 224)
    with torch.inference_mode():
        nchw = torch.from_numpy(prepared).permute(0, 3, 1, 2)
        gain = (module(nchw) - module(torch.zeros_like(nchw)))[0]
    for row, target in ((0, 5), (1, 3)):
        assert attributions[row].sum() == pytest.approx(float(gain[target]), rel=0.05)


def test_image_segmenter_gives_the_recorded_mask(serve, prepared):  # H12
    segmenter = fill(Segmenter(), 25.0)
    both = "[{name: output, datatype: BYTES, shape: [-1]}, {name: class, datatype: INT32, shape: [-1, 224, 224]}, {name: probability, datatype: FP32, shape: [-1, 224, 224]}]"
    runner, _ = serve("image_segmenter", segmenter, f"outputs: {both}")
    outputs, _ = run(runner, np.concatenate([np.zeros_like(prepared), prepared]))
    mask, probability = outputs["class"].data[1], outputs["probability"].data[1]
    assert dict(zip(*np.unique(mask, return_counts=True), strict=True)) == {1: 24982, 2: 25194}
    assert probability.sum(dtype=np.float64) == pytest.approx(42930.47962093353, rel=1e-6)
    for (y, x), (number, score) in {
        (0, 0): (2, 0.9207308888435364),
        (0, 223): (1, 0.6866577863693237),
        (100, 50): (2, 0.9183346629142761),
        (112, 112): (2, 0.5277039408683777),
        (223, 223): (2, 0.8261116743087769),
    }.items():
        assert mask[y, x] == number
        assert probability[y, x] == pytest.approx(score, abs=1e-6)
    nested = np.array(json.loads(outputs["output"].data[1]))
    assert nested.shape == (224, 224, 2)
    np.testing.assert_array_equal(nested[..., 0], mask)
    np.testing.assert_array_equal(nested[..., 1].astype(np.float32), probability)


def test_image_segmenter_answers_with_tensors_by_default(serve):
    _, spec = serve("image_segmenter", Segmenter())
    assert [one.name for one in spec.outputs] == ["class", "probability"]


def test_object_detector_gives_the_recorded_boxes(serve):  # H13
    runner, spec = serve("object_detector", Detector())
    assert spec.inputs[0].shape == (-1, -1, -1, 3)
    assert spec.inputs[0].image.resize == "none"
    images = np.ones((2, 6, 5, 3), np.float32)
    images[1] = 0
    outputs, _ = run(runner, images)
    first, second = (json.loads(text) for text in outputs["output"].data)
    assert first == [
        {"class1": [1.0, 2.0, 3.0, 4.0], "score": 0.8999999761581421},
        {"class2": [5.0, 6.0, 7.0, 8.0], "score": 0.5},
    ]
    assert second == []
    assert outputs["count"].data.tolist() == [2, 0]
    assert outputs["boxes"].data.tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8]], [[0] * 4, [0] * 4]]
    assert outputs["class"].data.tolist() == [[1, 2], [-1, -1]]
    assert outputs["score"].data.tolist()[0] == pytest.approx([0.9, 0.5])


def test_object_detector_applies_the_threshold(serve):
    runner, _ = serve("object_detector", Detector(), "parameters: {threshold: 0.51}")
    outputs, _ = run(runner, np.ones((1, 6, 5, 3), np.float32))
    assert outputs["count"].data.tolist() == [1]
    with pytest.raises(HandlerLoadError, match="threshold"):
        serve("object_detector", Detector(), "parameters: {threshold: high}")


def test_object_detector_passes_a_list_to_models_that_need_it(serve):
    runner, _ = serve("object_detector", ListDetector(), labels=0)
    outputs, _ = run(runner, np.ones((2, 6, 5, 3), np.float32))
    assert json.loads(outputs["output"].data[1]) == [{"3": [5.0] * 4, "score": 0.75}]


def test_an_onnx_classifier_is_served_without_torch_in_the_stages(tmp_path, loaded, prepared):
    weight = np.linspace(-1, 1, 30, dtype=np.float32).reshape(3, 10)
    nodes = [
        ("GlobalAveragePool", ["x"], ["a"], {}),
        ("Flatten", ["a"], ["b"], {}),
        ("MatMul", ["b", "w"], ["y"], {}),
    ]
    inputs, outputs = {"x": ("FP32", ("N", 3, 112, 96))}, {"y": ("FP32", ("N", 10))}
    write_graph(tmp_path / "m.onnx", nodes, inputs, outputs, {"w": weight})
    (tmp_path / "model.yaml").write_text("handler: image_classifier\nmodel: m.onnx\n")
    runner = loaded(tmp_path)
    assert runner.spec.inputs[0].shape == (-1, 112, 96, 3)
    image = prepared[:, :112, :96]
    outputs, _ = run(runner, np.ascontiguousarray(image))
    logits = image.mean(axis=(1, 2)) @ weight
    want = np.exp(logits) / np.exp(logits).sum()
    assert outputs["class"].data[0].tolist() == np.argsort(-want[0])[:5].tolist()
    np.testing.assert_allclose(outputs["probability"].data[0], np.sort(want[0])[::-1][:5], 1e-4)
    with pytest.raises(InferenceError, match="gradients"):
        run(runner, np.ascontiguousarray(image), explain=True)
