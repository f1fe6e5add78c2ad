"""The examples of Triton's Python backend: their clients, and the models written again as handlers."""

from pathlib import Path

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.models import port

PORTED = ("add_sub", "pytorch", "bls_sync", "bls_async", "square_int32", "repeat_int32")


def ports(places: Places, folder: Path) -> list[Path]:
    """Lay out the models as handlers."""
    for name in PORTED:
        port(name, folder / "models")
    return [folder / "models"]


SERVING = Serving("ports", ports, ports=(8000, 8001))
HANDLER = (
    'model.py is a handler of ksrv\'s; `backend: "python"` is refused by name (docs/triton.md)'
)


def client(script: str) -> Case:
    """Return the case of a client, which names the ports itself."""
    command = ("{python}", f"{{checkout}}/examples/{script}")
    return Case(script, command, SERVING, prints="PASS", changed=HANDLER)


NO_STREAM = "it calls a decoupled model and sums its answers, and a handler's call gets one answer (docs/composition.md)"

REPOSITORY = Repository(
    "triton-inference-server/python_backend",
    "python_backend",
    tuple(
        client(script)
        for script in (
            "add_sub/client.py",
            "pytorch/client.py",
            "bls/sync_client.py",
            "bls/async_client.py",
            "decoupled/square_client.py",
            "decoupled/repeat_client.py",
        )
    ),
    {
        "`bls_decoupled`": NO_STREAM,
        "`auto_complete`": "it asks for what a Python model's `auto_complete_config` filled in",
        "`custom_metrics`": "it asks for Triton's metrics port; handlers' metrics are at `/metrics` of the HTTP address",
        "`instance_kind`, `preprocessing`, `jax`": "need downloaded weights, TensorRT or JAX",
    },
)
