"""OpenVINO Model Server: its KServe samples, and the models and configurations of its tests."""

import json
from pathlib import Path

import numpy as np

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.openvino_models import resnet

SAMPLES = "client/python/kserve-api/samples"
IMAGES = "demos/common/static/images"


def sample_models(places: Places, folder: Path) -> list[Path]:
    """Write a resnet, one that takes files, and the pictures that the samples send."""
    resnet(folder / "resnet/1/model.xml")
    models = [
        {"config": {"name": "resnet", "base_path": str(folder / "resnet")}},
        {
            "config": {
                "name": "pictures",
                "base_path": str(folder / "resnet"),
                "layout": "NHWC:NCHW",
                "shape": "(-1,3,224,224)",
            }
        },
    ]
    (folder / "config.json").write_text(json.dumps({"model_config_list": models}))
    pixels = np.random.default_rng(3).integers(0, 255, (10, 224, 224, 3))
    np.save(folder / "imgs_nhwc.npy", pixels.astype(np.float32))
    np.save(folder / "imgs.npy", pixels.astype(np.float32).transpose(0, 3, 1, 2))
    np.save(folder / "labels.npy", np.zeros(10, np.int64))
    pictures = sorted((places.checkout / IMAGES).glob("*.jpeg"))
    (folder / "pictures.txt").write_text("".join(f"{picture} 0\n" for picture in pictures))
    return [folder / "config.json"]


def of_config(name: str) -> Serving:
    """Return the server of one configuration of OVMS' tests, whose models are in the checkout."""

    def lay_out(places: Places, folder: Path) -> list[Path]:
        text = (places.checkout / "src/test/configs" / name).read_text()
        (folder / name).write_text(text.replace("/ovms/", f"{places.checkout}/"))
        return [folder / name]

    return Serving(f"config-{name}", lay_out, {"ready_when": "any"})


def test_models(places: Places, folder: Path) -> list[Path]:
    """Write a configuration with every model of OVMS' tests that brings its file."""
    models = []
    for model in sorted((places.checkout / "src/test").iterdir()):
        if any(any((model / "1").glob(kind)) for kind in ("*.xml", "*.tflite", "saved_model.pb")):
            models.append({"config": {"name": model.name, "base_path": str(model)}})
    (folder / "config.json").write_text(json.dumps({"model_config_list": models}))
    return [folder / "config.json"]


SAMPLE = Serving("samples", sample_models)
MODELS = Serving("test-models", test_models)
MADE = "the resnet and its pictures in NumPy files are made here"
ASKED = "the request is made here"
PATHS = "`base_path` is the checkout's folder"


def sample(script: str, *arguments: str, **keys: object) -> Case:
    """Return the case of a sample."""
    protocol = script.partition("_")[0]
    address = (
        f"--{protocol}_address",
        f"{{{protocol}_host}}",
        f"--{protocol}_port",
        f"{{{protocol}_port}}",
    )
    command = ("{python}", f"{{checkout}}/{SAMPLES}/{script}.py", *address, *arguments)
    shown = " ".join(part for part in arguments if "{" not in part and part not in ("0", "1463"))
    name = f"{script}.py {shown}".strip()
    for word in (
        "--images_numpy_path",
        "--images_list",
        "--labels_numpy_path",
        "--input_name",
        "--output_name",
    ):
        name = name.replace(f" {word}", "")
    return Case(name, command, SAMPLE, folder=SAMPLES, **{"changed": MADE, **keys})  # type: ignore[arg-type]


def configuration(name: str, model: str, body: str, answer: str, fails: str = "") -> Case:
    """Return the case of a configuration: its model answers over REST."""
    url = f"http://{{http}}/v2/models/{model}/infer"
    command = ("{python}", "{root}/post_program.py", url, "--text", body)
    shown = f"src/test/configs/{name}"
    return Case(shown, command, of_config(name), prints=answer, changed=PATHS, fails=fails)


def request(
    name: str, datatype: str, shape: list[int], value: float | str = 1, second: str = ""
) -> str:
    """Return a request of one input or two, with one value in all places, for `format`."""
    count = int(np.prod(shape)) if shape else 1
    tensor = {"name": name, "datatype": datatype, "shape": shape, "data": [value] * count}
    tensors = [tensor, {**tensor, "name": second}] if second else [tensor]
    return json.dumps({"inputs": tensors}).replace("{", "{{").replace("}", "}}")


def model(name: str, given: str, answer: str, **keys: object) -> Case:
    """Return the case of one model of OVMS' tests."""
    url = f"http://{{http}}/v2/models/{name}/infer"
    command = ("{python}", "{root}/post_program.py", url, "--text", given)
    return Case(f"src/test/{name}", command, MODELS, prints=answer, **{"changed": ASKED, **keys})  # type: ignore[arg-type]


IMAGE = ("--input_name", "0", "--output_name", "1463")
CHANNELS_LAST = ("--images_numpy_path", "{here}/imgs_nhwc.npy")
FILES = ("--images_list", "{here}/pictures.txt", "--model_name", "pictures")
PIPELINE = "it is a pipeline (DAG), which is refused by name (docs/migration/openvino.md); its models serve"
GPU = "it names a GPU, which is refused (docs/migration/openvino.md)"
ABSENT = "its model is not in the checkout"
DUMMY = request("b", "FP32", [1, 10])
SUMMED = r'"data":\[2\.0'

REPOSITORY = Repository(
    "openvinotoolkit/model_server",
    "model_server",
    (
        *(
            sample(f"{protocol}_{what}", *arguments)
            for protocol in ("http", "grpc")
            for what, arguments in (
                ("server_live", ()),
                ("server_ready", ()),
                ("server_metadata", ()),
                ("model_ready", ("--model_name", "resnet")),
                ("model_metadata", ("--model_name", "resnet")),
            )
        ),
        sample(
            "http_infer_resnet", *CHANNELS_LAST, *IMAGE, "--labels_numpy_path", "{here}/labels.npy"
        ),
        sample("http_infer_resnet", *CHANNELS_LAST, *IMAGE, "--batchsize", "4", "--binary_data"),
        sample(
            "http_infer_resnet",
            *("--images_numpy_path", "{here}/imgs.npy", "--transpose_input", "False", *IMAGE),
        ),
        sample("http_async_infer_resnet", *CHANNELS_LAST, *IMAGE, "--batchsize", "1"),
        sample("http_infer_binary_resnet", *FILES, *IMAGE),
        sample("grpc_infer_resnet", *CHANNELS_LAST, *IMAGE),
        sample("grpc_infer_resnet", *CHANNELS_LAST, *IMAGE, "--batchsize", "4"),
        sample("grpc_async_infer_resnet", *CHANNELS_LAST, *IMAGE, "--batchsize", "1"),
        sample("grpc_infer_binary_resnet", *FILES, *IMAGE),
        model("dummy", DUMMY, SUMMED),
        model("dummyUppercase", request("B", "FP32", [1, 10]), SUMMED),
        model("dummy_fp64", request("input:0", "FP64", [1, 10]), "data"),
        model("dummy_tflite", request("input:0", "FP32", [1, 10]), SUMMED),
        model("dummy_saved_model", request("in", "FP32", [1, 10]), SUMMED),
        model("scalar", request("model_scalar_input", "FP32", [], 3), "data"),
        model("passthrough_string", request("my_name", "BYTES", [2], "text"), "text"),
        model("passthrough", request("input", "UINT8", [1, 10]), "data"),
        model("summator", request("input", "FP32", [1, 1]), "data"),
        model("increment_1x3x4x5", request("input", "FP32", [1, 3, 4, 5]), r"2\.0"),
        model("no_name_output", request("input_1", "INT8", [1, 10], second="input_2"), "data"),
        configuration("config.json", "dummy", request("b", "FP32", [30, 20]), SUMMED),
        configuration("config_cpu_dummy.json", "dummy", DUMMY, SUMMED),
        configuration("config_standard_dummy.json", "dummy", DUMMY, SUMMED),
        configuration(
            "config_dummy_dynamic_shape.json", "dummy", request("b", "FP32", [1, 7]), SUMMED
        ),
        configuration(
            "config_dummy_full_dynamic_shape.json", "dummy", request("b", "FP32", [3, 5]), SUMMED
        ),
        configuration(
            "config_standard_scalar.json",
            "scalar",
            request("model_scalar_input", "FP32", [], 3),
            "data",
        ),
        configuration(
            "config_string.json", "passthrough", request("my_name", "BYTES", [2], "text"), "text"
        ),
        configuration("config_dummy_dag.json", "pipeline1Dummy", DUMMY, SUMMED, PIPELINE),
        configuration("config_double_dummy.json", "pipeline1Dummy", DUMMY, SUMMED, PIPELINE),
        configuration(
            "config_dummy_dynamic_entry_dag.json",
            "pipeline1DummyDynamicDemultiplex",
            DUMMY,
            SUMMED,
            PIPELINE,
        ),
        configuration(
            "config_metadata_all.json", "dummyDynamic", request("b", "FP32", [2, 5]), SUMMED
        ),
        configuration("config_gpu_dummy.json", "dummy", DUMMY, SUMMED, GPU),
    ),
    {
        "`config_benchmark.json`, `config_gpu_face_detection_adas.json`": ABSENT,
        "`emptyConfig.json`, `emptyConfigWithMetrics.json`": "name no model, and a server without one does not begin",
        "`demos/*`": "download their models. The samples of TensorFlow Serving's API: docs/migration/tfserving.md",
        "`demos/common/stream_client`": "a library of the demos, which needs ffmpeg",
    },
)
