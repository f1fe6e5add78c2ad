"""TorchServe: the archives of its examples, and its Postman collections."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.archives import TORCHVISION, archive, of_config, weights

CLASSIFIERS = ("squeezenet1_1", "resnet-18", "densenet161", "alexnet")
LARGE = ("vgg16", "resnet-152-batch")
KITTEN = "examples/image_classifier/kitten.jpg"
DIGIT = "examples/image_classifier/mnist/test_data/3.png"
MNIST = "examples/image_classifier/mnist"

Maker = Callable[[Places, Path], None]


def store(make: Maker, properties: str = "") -> Callable[[Places, Path], list[Path]]:
    """Return what makes archives, and the config.properties that serves them."""

    def lay_out(places: Places, folder: Path) -> list[Path]:
        make(places, folder / "store")
        text = properties.replace("CHECKOUT", str(places.checkout))
        (folder / "config.properties").write_text(
            f"{text}\nmodel_store={folder}/store\nload_models=all\n"
        )
        return [folder / "store"]

    return lay_out


def serving(name: str, make: Maker, properties: str = "", **settings: Any) -> Serving:
    """Return a server of archives with TorchServe's routes."""
    settings = {"torchserve_config": "{here}/config.properties", **settings}
    return Serving(
        name, store(make, properties), settings, environment=TORCHVISION, start_timeout=300.0
    )


def described(*names: str) -> Maker:
    """Return what makes the archives of ts_scripts/mar_config.json."""
    return lambda places, folder: of_config(places.checkout, folder, names)


def mnist(handler: str = f"{MNIST}/mnist_handler.py", **options: str) -> Maker:
    """Return what makes the mnist archive with a handler of the examples.

    Args:
        handler: The handler's file, or a built-in's name.
        options: Options of torch-model-archiver that name files of the checkout.
    """

    def make(places: Places, folder: Path) -> None:
        network = places.checkout / MNIST / "mnist.py"
        files = {name: places.checkout / file for name, file in options.items()}
        made = weights(network, folder.parent / "mnist_cnn.pt")
        given = places.checkout / handler if handler.endswith(".py") else handler
        archive(folder, "mnist", serialized_file=made, model_file=network, handler=given, **files)

    return make


def micro_batching(places: Places, folder: Path) -> None:
    """Make the archive of examples/micro_batching."""
    example = places.checkout / "examples/micro_batching"
    network = places.checkout / "examples/image_classifier/resnet_18/model.py"
    made = weights(network, folder.parent / "resnet18.pth")
    archive(
        folder,
        "resnet-18_mb",
        serialized_file=made,
        model_file=network,
        handler=example / "micro_batching_handler.py",
        config_file=example / "config.yaml",
        extra_files=places.checkout / "examples/image_classifier/resnet_18/index_to_name.json",
    )


def secured(places: Places, folder: Path) -> None:
    """Make an archive, and a certificate: the key of the checkout's has 1024 bits, which OpenSSL refuses."""
    of_config(places.checkout, folder, ("squeezenet1_1",))
    files = ("-keyout", str(folder.parent / "key.pem"), "-out", str(folder.parent / "cert.pem"))
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )


def compiled(settings: str) -> Maker:
    """Return what makes the archive of test_torch_compile.py with one of its settings."""

    def make(places: Places, folder: Path) -> None:
        data = places.checkout / "test/pytest/test_data/torch_compile"
        made = weights(data / "model.py", folder.parent / "half_plus_two.pt")
        archive(
            folder,
            "half_plus_two",
            serialized_file=made,
            model_file=data / "model.py",
            handler=data / "compile_handler.py",
            config_file=data / settings,
            extra_files=data / "model.py",
        )

    return make


RANDOM = "the weights are random"
FORMS = "the weights are random: statuses and forms are looked at, not numbers"
STAND_IN = "`ts` is ksrv's stand-in, in which handlers of archives run"
CERTIFICATE = (
    "the certificate is made anew, because the key of theirs has 1024 bits; the weights are random"
)
MANAGEMENT = "models are not registered, scaled or removed by calls to an archive's server (docs/tutorials/from-torchserve.md)"
METRICS = "it asks port 8082 for TorchServe's own metrics; ksrv's have other names and are at /metrics (docs/torchserve.md)"
ARCHIVES = serving("archives", described(*CLASSIFIERS, "mnist"))
LARGE_ARCHIVES = serving("large-archives", described(*LARGE))
WITH_ENVELOPE = serving("kserve", mnist(), "service_envelope=kserve")
WITH_V2 = serving("kservev2", mnist(), "service_envelope=kservev2")
OWN_METRICS = serving(
    "own-metrics",
    mnist("examples/custom_metrics/mnist_handler.py"),
    "metrics_mode=prometheus\nmetrics_config=CHECKOUT/examples/custom_metrics/metrics.yaml\nmodel_metrics_auto_detect=true",
)
MICRO = serving("micro-batching", micro_batching)
SECURED = serving(
    "https",
    secured,
    tls_cert="{here}/cert.pem",
    tls_key="{here}/key.pem",
)


def post(file: str, route: str, served: Serving, prints: str, name: str = "", **keys: Any) -> Case:
    """Return the case of a file that is posted to a route, as the examples' README do by curl."""
    command = (
        *("{python}", "{root}/post_program.py", f"http://{{http}}{route}"),
        *("--file", f"{{checkout}}/{file}", "--type", "application/octet-stream"),
    )
    name = name or f"{route} {Path(file).name}"
    return Case(name, command, served, prints=prints, **{"changed": RANDOM, **keys})


def collection(
    name: str, data: str, served: Serving, rows: tuple[str, ...] = (), changed: str = FORMS
) -> Case:
    """Return the case of a Postman collection.

    Args:
        name: The collection.
        data: Its rows; none where empty.
        served: The server.
        rows: The models whose rows are sent; all of them where empty.
        changed: What stands in another way than in the checkout.
    """
    command = (
        *("{python}", "{root}/postman_program.py", f"postman/{name}_collection.json"),
        *(
            "-e",
            "postman/environment.json",
            "--set",
            "pred-port={http_port}",
            "--set",
            "mgmt-port={http_port}",
        ),
        *("--set", "sec-pred-port={http_port}", "--set", "sec-mgmt-port={http_port}"),
        *("--set", "sec-metric-port={http_port}"),
        *(("-d", f"postman/{data}.json") if data else ()),
        *(("--rows", ",".join(rows)) if rows else ()),
    )
    return Case(
        f"test/postman/{name}_collection.json",
        command,
        served,
        folder="test",
        tests=True,
        changed=changed,
        failing={
            "Model Zoo - Register *": MANAGEMENT,
            "Model Zoo - Unregister *": MANAGEMENT,
            "Model Zoo - Model Metrics *": METRICS,
            "HTTPS Register *": MANAGEMENT,
            "HTTPS Scale *": MANAGEMENT,
            "HTTPS UnRegister *": MANAGEMENT,
        },
    )


HALVES = '{{"instances": [[1.0], [2.0], [3.0]]}}'
CLASSES = r'200 \{\s*"[^"]+": ?\d\.\d+'

REPOSITORY = Repository(
    "pytorch/serve",
    "serve",
    (
        collection("inference_api_test", "inference_data", ARCHIVES, (*CLASSIFIERS, "mnist")),
        collection("explanation_api_test", "explanation_data", ARCHIVES),
        *(post(KITTEN, f"/predictions/{name}", ARCHIVES, CLASSES) for name in CLASSIFIERS),
        post(DIGIT, "/predictions/mnist", ARCHIVES, r"200 \d"),
        post(DIGIT, "/predictions/mnist/1.0", ARCHIVES, r"200 \d"),
        post(DIGIT, "/explanations/mnist", ARCHIVES, r"200 \["),
        *(post(KITTEN, f"/predictions/{name}", LARGE_ARCHIVES, CLASSES) for name in LARGE),
        collection("kf_api_test", "kf_inference_data", WITH_ENVELOPE),
        collection("kf_inference_api_test", "kf_inference_data", WITH_ENVELOPE),
        collection("kfv2_api_test", "kfv2_inference_data", WITH_V2),
        *(
            post(
                f"kubernetes/kserve/kf_request_json/v2/mnist/{file}",
                f"/v2/models/mnist/{verb}",
                WITH_V2,
                "outputs",
            )
            for file in ("mnist_v2_tensor.json", "mnist_v2_bytes.json")
            for verb in ("infer", "explain")
        ),
        post(
            DIGIT, "/predictions/mnist", OWN_METRICS, r"200 \d", name="examples of custom_metrics"
        ),
        post(
            KITTEN, "/predictions/resnet-18_mb", MICRO, CLASSES, name="examples of micro_batching"
        ),
        *(
            Case(
                f"test_torch_compile.py {settings}",
                (
                    *("{python}", "{root}/post_program.py"),
                    *("http://{http}/predictions/half_plus_two", "--text", HALVES),
                ),
                serving(settings.partition(".")[0], compiled(settings)),
                prints=r"3\.5",
                changed=RANDOM,
            )
            for settings in ("pt2_enable_false.yaml", "pt2_enable_true.yaml")
        ),
        Case(
            "ts/torch_handler/unit_tests",
            (
                *("{python}", "-m", "pytest", "-p", "torchserve_plugin"),
                *(
                    f"ts/torch_handler/unit_tests/test_{name}.py"
                    for name in ("base_handler", "envelopes")
                ),
            ),
            copies=("ts/torch_handler/unit_tests",),
            folder=".",
            tests=True,
            changed=STAND_IN,
            environment={"PYTHONPATH": "{root}/stand_ins:{root}/stand_ins/torchvision_operators"},
        ),
        collection("https_test", "", SECURED, changed=CERTIFICATE),
    ),
    {
        "`management_api_test_collection.json`, `workflow_*_collection.json`, `test/pytest` that registers models": MANAGEMENT,
        "`increased_timeout_inference.json`, `large_model_inference_data.json`, rows whose archive lies on the web": "download their models",
        "other tests of `ts/torch_handler/unit_tests`": "download their models, or read weights that are not in the checkout",
        "`fastrcnn`, `maskrcnn`, `fcn_resnet_101`, `deeplabv3_resnet_101_eager`": "download the weights of their backbones",
        "`stateful`, `continuous batching`, DeepSpeed, PiPPy, vLLM, DALI, DLRM": "refused by name (docs/torchserve.md)",
        "tests of TorchServe's gRPC": "register archives that lie on the web; tests/integration/foreign_models/test_torchserve_grpc.py makes the calls",
    },
)
