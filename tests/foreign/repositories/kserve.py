"""KServe's published requests, and its Python client."""

import shutil
from pathlib import Path

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.archives import TORCHVISION, archive, weights
from tests.foreign.made.models import port

SAMPLES = "docs/samples/v1beta1"
STORE = f"{SAMPLES}/torchserve/model-archiver/model-store"


def tables(places: Places, folder: Path) -> list[Path]:
    """Lay out a model of four numbers under the names that the requests of several servers ask for."""
    for name in (
        "sklearn-iris",
        "sklearn-v2-iris",
        "xgboost-iris",
        "lightgbm-iris",
        "simple-string",
    ):
        shutil.copytree(port("iris", folder), folder / "models" / name)
        shutil.rmtree(folder / "iris")
    cifar = folder / "models/cifar10"
    shutil.copytree(port("cifar10", folder), cifar)
    shutil.rmtree(folder / "cifar10")
    return [folder / "models"]


def archives(envelope: str) -> object:
    """Return what makes KServe's mnist archive, and a config.properties with an envelope."""

    def make(places: Places, folder: Path) -> list[Path]:
        source = places.checkout / STORE / "mnist"
        archive(
            folder / "store",
            "mnist",
            serialized_file=weights(source / "mnist.py", folder / "mnist_cnn.pt"),
            model_file=source / "mnist.py",
            handler=source / "mnist_handler.py",
        )
        (folder / "config.properties").write_text(
            f"model_store={folder}/store\nload_models=all\nservice_envelope={envelope}\n"
        )
        return [folder / "store"]

    return make


def torchserve(envelope: str) -> Serving:
    """Return the server of the archive with an envelope."""
    name = f"archives-{envelope}"
    settings = {"torchserve_config": "{here}/config.properties"}
    return Serving(name, archives(envelope), settings, environment=TORCHVISION)  # type: ignore[arg-type]


TABLES = Serving("tables", tables)
KSERVE, KSERVE_V2 = torchserve("kserve"), torchserve("kservev2")
RANDOM = "the model is made here, with random weights"
PACKAGE = "a program of this tree calls the published package `kserve`"


def published(file: str, route: str, serving: Serving, prints: str, **keys: object) -> Case:
    """Return the case of a published request that is posted to a route."""
    command = (
        *("{python}", "{root}/post_program.py", f"http://{{http}}{route}"),
        *("--file", f"{{checkout}}/{SAMPLES}/{file}"),
    )
    return Case(f"{file} {route}", command, serving, prints=prints, **{"changed": RANDOM, **keys})  # type: ignore[arg-type]


def client(way: str) -> Case:
    """Return the case of KServe's client package over one protocol."""
    command = ("{python}", "{root}/kserve_program.py", way, "{http}", "{grpc}")
    return Case(
        f"InferenceClient {way}", command, TABLES, prints="all of it works", changed=PACKAGE
    )


PREDICTED = r'"predictions":\[\d'
EXPLAINED = r'"explanations":\['

REPOSITORY = Repository(
    "kserve/kserve",
    "kserve",
    (
        published(
            "sklearn/v1/iris-input.json", "/v1/models/sklearn-iris:predict", TABLES, PREDICTED
        ),
        published(
            "sklearn/v2/iris-input.json", "/v2/models/sklearn-v2-iris/infer", TABLES, "outputs"
        ),
        published("xgboost/iris-input.json", "/v2/models/xgboost-iris/infer", TABLES, "outputs"),
        published("triton/torchscript/input.json", "/v2/models/cifar10/infer", TABLES, "outputs"),
        published("torchserve/v1/mnist.json", "/v1/models/mnist:predict", KSERVE, PREDICTED),
        published("torchserve/v1/mnist.json", "/v1/models/mnist:explain", KSERVE, EXPLAINED),
        published(
            "torchserve/v1/imgconv/input.json", "/v1/models/mnist:predict", KSERVE, PREDICTED
        ),
        published(
            "torchserve/v2/tensor_conv/mnist_v2.json",
            "/v2/models/mnist/infer",
            KSERVE_V2,
            "outputs",
        ),
        published(
            "torchserve/v2/tensor_conv/mnist_v2.json",
            "/v2/models/mnist/explain",
            KSERVE_V2,
            "outputs",
        ),
        published(
            "torchserve/v2/bytes_conv/mnist_v2_bytes.json",
            "/v2/models/mnist/infer",
            KSERVE_V2,
            "outputs",
            fails="its `data` is a text, where the protocol has an array; TorchServe's own file of the name has one and works",
        ),
        *(client(way) for way in ("rest-v1", "rest-v2", "grpc")),
    ),
    {
        "`torchserve/v1/torchserve_grpc_client.py`": "its messages are generated from pytorch/serve's protos, which are in another checkout",
        "`tensorflow/grpc_client.py`": "needs TensorFlow; tests/dialects/tfserving/test_clients.py makes its calls",
        "`python/kserve/test`": "tests of KServe's own server, which they run in their process",
        "explanations of Alibi, ART and AIX, transformers, pipelines, notebooks": "need a cluster, or other servers",
    },
)
