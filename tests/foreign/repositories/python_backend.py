"""The examples of Triton's Python backend: their models and their clients, as they are."""

from pathlib import Path
from typing import Any

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.archives import TORCHVISION, cached_weights
from tests.foreign.made.python_models import FORWARDED, METRICS_PORT, PythonModel, lay_out

M = PythonModel
MODELS = (
    M("examples/add_sub"),
    M("examples/pytorch"),
    M("examples/bls", "bls_sync", file="sync_model.py", config="sync_config.pbtxt"),
    M("examples/bls", "bls_async", file="async_model.py", config="async_config.pbtxt"),
    M("examples/decoupled", "square_int32", file="square_model.py", config="square_config.pbtxt"),
    M("examples/decoupled", "repeat_int32", file="repeat_model.py", config="repeat_config.pbtxt"),
    M(
        "examples/bls_decoupled",
        "bls_decoupled_sync",
        file="sync_model.py",
        config="sync_config.pbtxt",
    ),
    M(
        "examples/bls_decoupled",
        "bls_decoupled_async",
        file="async_model.py",
        config="async_config.pbtxt",
    ),
    M("examples/auto_complete", "batch_auto_complete", file="batch_model.py", config=""),
    M("examples/auto_complete", "nobatch_auto_complete", file="nobatch_model.py", config=""),
    M("examples/custom_metrics"),
    M("examples/jax"),
    M("examples/instance_kind", "resnet50"),
)


def models(places: Places, folder: Path) -> list[Path]:
    """Lay the models out, and random weights in place of the weights that a model would download."""
    cached_weights(folder / "torch")
    return lay_out(MODELS, places, folder)


SERVING = Serving(
    "examples",
    models,
    ports=(8000, 8001),
    environment={"TORCH_HOME": "{here}/torch", **TORCHVISION},
    start_timeout=300.0,
    metrics_port=METRICS_PORT,
)


def client(script: str, *models: str, changed: str = "") -> Case:
    """Return the case of a client, which names the ports itself."""
    command = ("{python}", f"{{checkout}}/examples/{script}")
    return Case(script, command, SERVING, prints="PASS", models=models, changed=changed)


def asked(source: str, model: str, **keys: Any) -> Case:
    """Return the case of a model whose client cannot run, which is asked for one answer."""
    command = ("{python}", "{root}/python_model_program.py", "{http}", "{grpc}", model)
    name, models = f"{source} one request", (f"examples/{source}",)
    return Case(name, command, SERVING, prints="PASS", models=models, **keys)


REPOSITORY = Repository(
    "triton-inference-server/python_backend",
    "python_backend",
    (
        client("add_sub/client.py", "examples/add_sub"),
        client("pytorch/client.py", "examples/pytorch"),
        client("bls/sync_client.py", "examples/bls/sync_model.py"),
        client("bls/async_client.py", "examples/bls/async_model.py"),
        client("decoupled/square_client.py", "examples/decoupled/square_model.py"),
        client("decoupled/repeat_client.py", "examples/decoupled/repeat_model.py"),
        client("bls_decoupled/sync_client.py", "examples/bls_decoupled/sync_model.py"),
        client("bls_decoupled/async_client.py", "examples/bls_decoupled/async_model.py"),
        client(
            "auto_complete/client.py",
            "examples/auto_complete/batch_model.py",
            "examples/auto_complete/nobatch_model.py",
        ),
        client("jax/client.py", "examples/jax"),
        client("custom_metrics/client.py", "examples/custom_metrics", changed=FORWARDED),
        asked("instance_kind", "resnet50", changed="the weights are random"),
    ),
    {
        "`instance_kind/client.py`": "it downloads its program and its picture",
        "`preprocessing`": "needs TensorRT",
    },
)
