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


def store(make: Maker, properties: str, loaded: str) -> Callable[[Places, Path], list[Path]]:
    """Return what makes archives, and the config.properties that serves them."""

    def lay_out(places: Places, folder: Path) -> list[Path]:
        make(places, folder / "store")
        text = properties.replace("CHECKOUT", str(places.checkout))
        (folder / "config.properties").write_text(
            f"{text}\nmodel_store={folder}/store\nload_models={loaded}\n"
        )
        return [folder / "store"]

    return lay_out


def serving(name: str, make: Maker, properties: str = "", **settings: Any) -> Serving:
    """Return a server of archives with TorchServe's routes."""
    return _serving(name, store(make, properties, "all"), settings)


def registering(name: str, make: Maker, properties: str = "", **settings: Any) -> Serving:
    """Return a server of a store whose archives clients register."""
    settings |= {"model_control": "explicit", "ready_when": "any"}
    return _serving(name, store(make, properties, "none"), settings)


def _serving(
    name: str, models: Callable[[Places, Path], list[Path]], settings: dict[str, Any]
) -> Serving:
    settings = {"torchserve_config": "{here}/config.properties", **settings}
    return Serving(name, models, settings, environment=TORCHVISION, start_timeout=300.0)


def described(*names: str) -> Maker:
    """Return what makes the archives of ts_scripts/mar_config.json."""
    return lambda places, folder: of_config(places.checkout, folder, names)


def mnist(handler: str = f"{MNIST}/mnist_handler.py", **options: str) -> Maker:
    """Return what makes the mnist archive with a handler of the examples."""

    def make(places: Places, folder: Path) -> None:
        network = places.checkout / MNIST / "mnist.py"
        files = {name: places.checkout / file for name, file in options.items()}
        made = weights(network, folder.parent / "mnist_cnn.pt")
        given = places.checkout / handler if handler.endswith(".py") else handler
        archive(folder, "mnist", serialized_file=made, model_file=network, handler=given, **files)

    return make


def micro_batching(places: Places, folder: Path) -> None:
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
OF_ARCHIVE = (
    "it gives another handler or name than the archive's manifest has, which ksrv refuses with 400"
)
AFTER = "it asks for the model of a registration that ksrv refused, and gets 404"
STRICT = "ksrv answers 400 to a value that is not a number of the key, where TorchServe takes a default or answers 500"
WITHOUT_WORKERS = (
    "TorchServe takes a model that has no workers and cannot serve; ksrv starts one, and refuses 0"
)
STARTS_IN_NO_TIME = "ksrv answers 400 to a startup_timeout of 0, with which TorchServe's workers fail and it answers 500"
ON_THE_WEB = (
    "it names an archive on the web, to which ksrv answers 404; TorchServe answers 400 or 500"
)
MANAGEMENT = {
    "Model Re-Registration Densenet161": ON_THE_WEB,
    "Register Model - Invalid URL": ON_THE_WEB,
    "Register Model - Empty URL , Valid Model Name": "ksrv answers 400 to an empty url, as to a missing url",
    "Register Mnist Model with Invalid Handler*": OF_ARCHIVE,
    "Register Model with Additional Params": OF_ARCHIVE,
    "Register Model with Batch Size": OF_ARCHIVE,
    "Register Model with Non integer Batch Size": OF_ARCHIVE,
    "Register Model with integer Batch Size but non integer *": OF_ARCHIVE,
    "Scale Invalid Mnist Handler Model *": AFTER,
    "UnRegister Model mnist*": AFTER,
    "UnRegister Model Resnet152*": AFTER,
    "UnRegister Model 3": AFTER,
    "UnRegister Model 4": AFTER,
    "UnRegister Model 5": AFTER,
    "Register Model with startup_timeout as 0": WITHOUT_WORKERS,
    "Register Model with Additional Params and startup_timeout as 0": STARTS_IN_NO_TIME,
    'Update Worker with "Zero" Worker Count': WITHOUT_WORKERS,
    "Register Squeezenet Model Negative initial workers": STRICT,
    'List with "Negative" *': STRICT,
    'Scale Workers - Invalid parameter values for both "synchronous" & *': STRICT,
    "Scale worker by calling Update Worker API with negative min *": STRICT,
}
"""Rows of management_data.json that fail, and why."""
METRICS = "it asks port 8082 for TorchServe's own metrics; ksrv's have other names and are at /metrics (docs/migration/torchserve.md)"
ARCHIVES = serving("archives", described(*CLASSIFIERS, "mnist"))
LARGE_ARCHIVES = serving("large-archives", described(*LARGE))
STORE = registering("store", described(*CLASSIFIERS, *LARGE, "mnist"))
STORE_WITH_ENVELOPE = registering("kserve-store", mnist(), "service_envelope=kserve")
STORE_WITH_V2 = registering("kservev2-store", mnist(), "service_envelope=kservev2")
WITH_V2 = serving("kservev2", mnist(), "service_envelope=kservev2")
OWN_METRICS = serving(
    "own-metrics",
    mnist("examples/custom_metrics/mnist_handler.py"),
    "metrics_mode=prometheus\nmetrics_config=CHECKOUT/examples/custom_metrics/metrics.yaml\nmodel_metrics_auto_detect=true",
)
MICRO = serving("micro-batching", micro_batching)
SECURED = registering(
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
    """Return the case of a Postman collection."""
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
            "Model Zoo - Model Metrics *": METRICS,
            **{f"management request {test}": why for test, why in MANAGEMENT.items()},
        },
        timeout=900.0,
    )


HALVES = '{{"instances": [[1.0], [2.0], [3.0]]}}'
CLASSES = r'200 \{\s*"[^"]+": ?\d\.\d+'

REPOSITORY = Repository(
    "pytorch/serve",
    "serve",
    (
        collection("inference_api_test", "inference_data", STORE, (*CLASSIFIERS, "vgg16")),
        collection("explanation_api_test", "explanation_data", STORE),
        collection("management_api_test", "management_data", STORE),
        *(post(KITTEN, f"/predictions/{name}", ARCHIVES, CLASSES) for name in CLASSIFIERS),
        post(DIGIT, "/predictions/mnist", ARCHIVES, r"200 \d"),
        post(DIGIT, "/predictions/mnist/1.0", ARCHIVES, r"200 \d"),
        post(DIGIT, "/explanations/mnist", ARCHIVES, r"200 \["),
        *(post(KITTEN, f"/predictions/{name}", LARGE_ARCHIVES, CLASSES) for name in LARGE),
        collection("kf_api_test", "kf_inference_data", STORE_WITH_ENVELOPE),
        collection("kf_inference_api_test", "kf_inference_data", STORE_WITH_ENVELOPE),
        collection("kfv2_api_test", "kfv2_inference_data", STORE_WITH_V2),
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
        "`workflow_*_collection.json`": "workflows are not served (docs/migration/torchserve.md)",
        "`test/pytest` that registers models": "starts TorchServe itself",
        "`increased_timeout_inference.json`, `large_model_inference_data.json`, rows whose archive is on the web": "download their models",
        "other tests of `ts/torch_handler/unit_tests`": "download their models, or read weights that are not in the checkout",
        "`fastrcnn`, `maskrcnn`, `fcn_resnet_101`, `deeplabv3_resnet_101_eager`": "download the weights of their backbones",
        "`stateful`, `continuous batching`, DeepSpeed, PiPPy, vLLM, DALI, DLRM": "refused by name (docs/migration/torchserve.md)",
        "tests of TorchServe's gRPC": "register archives from the web; tests/dialects/torchserve/routes/test_grpc.py makes the calls",
    },
)
