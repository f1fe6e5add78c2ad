"""The examples of Triton's Python backend: their models and their clients, as they are."""

from tests.foreign.cases import Case, Repository, Serving
from tests.foreign.made.python_models import PythonModel, lay_out

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
)
SERVING = Serving(
    "examples",
    lambda places, folder: lay_out(MODELS, places, folder),
    ports=(8000, 8001),
    start_timeout=300.0,
)


def client(script: str, *models: str, prints: str = "PASS") -> Case:
    """Return the case of a client, which names the ports itself."""
    command = ("{python}", f"{{checkout}}/examples/{script}")
    return Case(script, command, SERVING, prints=prints, models=models)


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
        Case(
            "one request to examples/custom_metrics",
            (
                "{python}",
                "{root}/python_model_program.py",
                "{http}",
                "{grpc}",
                "custom_metrics",
            ),
            SERVING,
            prints="PASS",
            models=("examples/custom_metrics",),
        ),
    ),
    {
        "`custom_metrics/client.py`": "it asks for Triton's metrics port; a model's metrics are at `/metrics` of the HTTP address",
        "`instance_kind`, `preprocessing`, `jax`": "need a GPU, TensorRT or JAX",
    },
)
