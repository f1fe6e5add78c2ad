"""The examples of Triton's Python client, and its library's tests."""

import shutil
from pathlib import Path

from onnx import TensorProto

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.models import photo, port
from tests.foreign.made.onnx_models import classifier, identity

EXAMPLES = "src/python/examples"
ATTRDICT = {"PYTHONPATH": "{root}/stand_ins"}


def triton_examples(places: Places, folder: Path) -> list[Path]:
    """Lay out NVIDIA's example repository as L0_http does: its files, and two networks with random weights."""
    models = folder / "models"
    shutil.copytree(places.checkouts / "server" / "docs/examples/model_repository", models)
    shutil.rmtree(models / "simple_identity")
    port("simple_identity", models)
    port("simple_string_dyna_sequence", models)
    densenet = models / "densenet_onnx/1/model.onnx"
    classifier(densenet, "data_0", [1, 3, 224, 224], "fc6_1", [1, 1000, 1, 1], channels=1)
    inception = models / "inception_onnx/1/model.onnx"
    probabilities = "InceptionV3/Predictions/Softmax:0"
    classifier(inception, "input:0", [1, 299, 299, 3], probabilities, [1, 1001], channels=3)
    photo(folder / "photo.jpg")
    for number in range(3):
        photo(folder / f"photos/{number}.jpg", seed=number)
    return [models]


def seven_models(places: Places, folder: Path) -> list[Path]:
    """Lay out the example repository with as many models as the examples over HTTP count."""
    models = triton_examples(places, folder)[0]
    for name in ("densenet_onnx", "simple_string_dyna_sequence"):
        shutil.rmtree(models / name)
    return [models]


def eight_models(places: Places, folder: Path) -> list[Path]:
    """Lay out the example repository with as many models as the examples over gRPC count."""
    models = triton_examples(places, folder)[0]
    shutil.rmtree(models / "simple_string_dyna_sequence")
    return [models]


def decoupled(places: Places, folder: Path) -> list[Path]:
    """Write the streaming models again as handlers."""
    return [port("repeat_int32", folder / "models").parent]


def fixed_ports(places: Places, folder: Path) -> list[Path]:
    """Write the models of examples that name the ports themselves."""
    models = folder / "models"
    model = models / "custom_identity_int32"
    identity(model / "1/model.onnx", [TensorProto.INT32], ["rows", "size"])
    (model / "config.pbtxt").write_text(
        'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        'input [{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }]\n'
        'output [{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }]\n'
    )
    return [models]


def images(places: Places, folder: Path) -> list[Path]:
    """Write the ensemble of ensemble_image_client.py, whose first step is a C++ backend of Triton's."""
    models = folder / "models"
    for name in ("image_preprocess", "inception_graphdef", "preprocess_inception_ensemble"):
        port(name, models)
    shape = ["rows", 299, 299, 3]
    network = models / "inception_graphdef/1/model.onnx"
    classifier(network, "input", shape, "probabilities", ["rows", 1001], channels=3)
    labels = "".join(f"class {number}\n" for number in range(1001))
    (models / "preprocess_inception_ensemble/labels.txt").write_text(labels)
    for number in range(3):
        photo(folder / f"photos/{number}.jpg", seed=number)
    return [models]


SHARED = {
    "allow_shared_memory": True,
    "control_token_file": "{root}/stand_ins/control_token/tokens",
}
TRITON = Serving("triton", triton_examples, SHARED)
EXPLICIT = {"model_control": "explicit", "load_model": ["*"]}
SEVEN = Serving("seven", seven_models, EXPLICIT)
EIGHT = Serving("eight", eight_models, EXPLICIT)
DECOUPLED = Serving("decoupled", decoupled)
FIXED_PORTS = Serving("fixed-ports", fixed_ports, ports=(8000, 8001))
IMAGES = Serving("images", images)


def example(script: str, *arguments: str, serving: Serving = TRITON, **keys: object) -> Case:
    """Return the case of an example that takes `-u`."""
    address = "{grpc}" if "grpc" in script or "grpc" in arguments else "{http}"
    command = ("{python}", f"{{checkout}}/{EXAMPLES}/{script}.py", "-u", address, *arguments)
    name = " ".join([f"{script}.py", *(part for part in arguments if "{" not in part)])
    return Case(name, command, serving, **keys)  # type: ignore[arg-type]


def image_example(*arguments: str, folder: bool = False) -> Case:
    """Return a case of image_client.py."""
    given = "{here}/photos" if folder else "{here}/photo.jpg"
    return example(
        "image_client",
        *arguments,
        given,
        environment=ATTRDICT,
        prints=r"\d\.\d+ \(\d+\) = ",
        changed="the package attrdict, which Python 3.10 and later cannot import, has a stand-in",
    )


NAMED_TRITON = "it asserts that the server's name is `triton`; ksrv's is `ksrv`"
FILES = (
    "all of it works until it brings a file with a load, which is INVALID_ARGUMENT (docs/migration/triton.md): it expects "
    "INTERNAL, and its comment says that INVALID_ARGUMENT is right"
)
NO_GPU = "CUDA regions need a GPU and the CUDA build of tritonclient; ksrv answers that it has no GPU support"

REPOSITORY = Repository(
    "triton-inference-server/client",
    "client",
    (
        *(
            example(script, *arguments)
            for script, variants in {
                "simple_http_infer_client": (
                    (),
                    ("-v",),
                    (
                        "--request-compression-algorithm=gzip",
                        "--response-compression-algorithm=deflate",
                    ),
                ),
                "simple_http_async_infer_client": ((),),
                "simple_http_string_infer_client": ((),),
                "simple_http_sequence_sync_infer_client": ((), ("-d",), ("-d", "-o", "100")),
                "simple_http_aio_infer_client": ((),),
                "simple_grpc_infer_client": ((), ("-v",), ("-C", "gzip")),
                "simple_grpc_async_infer_client": ((), ("-v",)),
                "simple_grpc_string_infer_client": ((),),
                "simple_grpc_sequence_sync_infer_client": ((), ("-d",), ("-d", "-o", "100")),
                "simple_grpc_sequence_stream_infer_client": ((), ("-d",), ("-d", "-o", "100")),
                "simple_grpc_aio_infer_client": ((),),
                "simple_grpc_aio_sequence_stream_infer_client": ((), ("-d",)),
                "simple_grpc_custom_args_client": ((),),
                "simple_grpc_keepalive_client": ((),),
                "grpc_client": ((),),
                "grpc_explicit_byte_content_client": ((),),
                "grpc_explicit_int8_content_client": ((),),
                "grpc_explicit_int_content_client": ((),),
                "simple_http_shm_client": ((),),
                "simple_grpc_shm_client": ((),),
                "simple_http_shm_string_client": ((),),
                "simple_grpc_shm_string_client": ((),),
                "reuse_infer_objects_client": ((), ("-i", "grpc")),
            }.items()
            for arguments in variants
        ),
        *(
            example(script, fails=NAMED_TRITON)
            for script in ("simple_http_health_metadata", "simple_grpc_health_metadata")
        ),
        *(
            example(
                script,
                "-v",
                copies=(f"{EXAMPLES}/{script}.py",),
                edits=((f"{EXAMPLES}/{script}.py", '"triton"', '"ksrv"'),),
                changed="the name that it expects of the server is `ksrv`",
            )
            for script in ("simple_http_health_metadata", "simple_grpc_health_metadata")
        ),
        *(
            example(script, fails=NO_GPU)
            for script in ("simple_http_cudashm_client", "simple_grpc_cudashm_client")
        ),
        *(
            image_example("-m", model, "-s", scaling, "-c", "3", *way)
            for model, scaling in (("densenet_onnx", "INCEPTION"), ("inception_onnx", "NONE"))
            for way in ((), ("-i", "grpc"), ("-a",), ("-i", "grpc", "--streaming"))
        ),
        image_example("-m", "densenet_onnx", "-s", "VGG", folder=True),
        example(
            "grpc_image_client",
            *("-m", "densenet_onnx", "-s", "INCEPTION", "{here}/photo.jpg"),
            prints=r"\d\.\d+ \(\d+\) = ",
        ),
        *(
            example(script, serving=serving, fresh=True, prints="PASS", fails=fails)
            for script, serving, fails in (
                ("simple_http_model_control", SEVEN, ""),
                ("simple_grpc_model_control", EIGHT, FILES),
            )
        ),
        example(
            "simple_grpc_custom_repeat",
            serving=DECOUPLED,
            prints="PASS",
            changed="Triton's C++ backend is a handler of 3 lines",
        ),
        *(
            Case(
                f"memory_growth_test.py -i {protocol}",
                ("{python}", f"{{checkout}}/{EXAMPLES}/memory_growth_test.py", "-i", protocol),
                FIXED_PORTS,
            )
            for protocol in ("http", "grpc")
        ),
        *(
            example(
                "ensemble_image_client",
                *("-c", "2", *protocol, "{here}/photos"),
                serving=IMAGES,
                prints="class ",
                changed="the ensemble's first step, a C++ backend, is a handler of 4 lines",
            )
            for protocol in ((), ("-i", "grpc"))
        ),
        Case(
            "src/python/library/tests",
            (
                *("{python}", "-m", "pytest", "src/python/library/tests"),
                "--ignore=src/python/library/tests/test_cuda_shared_memory.py",
            ),
            TRITON,
            copies=("src/python/library/tests",),
            folder=".",
            tests=True,
        ),
    ),
)
