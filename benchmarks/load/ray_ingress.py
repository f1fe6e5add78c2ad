"""ksrv in a replica of Ray Serve beside the same engine without Ray: requests per second, as ratios.

    python benchmarks/load/ray_ingress.py [--rounds 7] [--seconds 1] [--connections 16]

W1 is FP32 [1,16] and W2 FP32 [1,224,224,3], in binary. They go to a server of `ksrv serve`, to a replica's
own port (direct ingress), and to Ray's HTTP ingress, which forwards them to the replica. A round gives each
its turn and compares their rates; the median round is printed. Needs the extra `ray`, scikit-learn, Pillow, cc and
OpenSSL's headers.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import ray
from ray import serve

import ksrv.ray
from ksrv.testing import Server

sys.path.insert(0, str(Path(__file__).parent))

from conditions import Client
from servers import free_port, write_models

SHAPES = {"w1": [1, 16], "w2": [1, 224, 224, 3]}
WITHOUT, DIRECT, INGRESS = "without Ray", "direct ingress", "Ray's ingress"


def message(model: str) -> bytes:
    """Return a workload's request."""
    shape = SHAPES[model]
    size = 4
    for entry in shape:
        size *= entry
    parameters = {"binary_data_size": size}
    inputs = [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters}]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + size}\r\n\r\n"
    )
    return head.encode() + header + bytes(size)


def port_of(address: str) -> int:
    """Return the port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def measure(client: Client, ports: dict[str, int], rounds: int, seconds: float) -> None:
    """Print one line for each workload and way."""
    rates: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):  # the first one warms
        for model in SHAPES:
            for way, port in ports.items():
                rate = client.count(port, message(model), seconds) / seconds
                if turn:
                    rates.setdefault((model, way), []).append(rate)
    print(f"{'workload':<9} {'way':<15} {'beside no Ray':>13}  spread")
    for (model, way), found in rates.items():
        # Round by round, since a busy machine changes its pace between them.
        ratios = [rate / plain for rate, plain in zip(found, rates[model, WITHOUT], strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{model:<9} {way:<15} {statistics.median(ratios):12.2f}x  {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    os.environ.update(RAY_worker_niceness="0")  # as the server without Ray and the client have it
    with tempfile.TemporaryDirectory(prefix="ksrv-ray-") as name:
        folder = Path(name)
        write_models(folder / "models")
        ingress = free_port()
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": ingress})
            # Addresses on loopback, as the client has it, so that the network is the same for all.
            settings = {"http": "127.0.0.1:0", "grpc": "off", "drain_delay": 0}
            serve.run(ksrv.ray.app(folder / "models", settings=settings))
            with Server(folder / "models", grpc="off") as plain:
                while not (replicas := ksrv.ray.addresses()):
                    pass
                ports = {
                    WITHOUT: port_of(plain.http),
                    DIRECT: port_of(replicas[0].http),
                    INGRESS: ingress,
                }
                client = Client(folder, options.connections)
                measure(client, ports, options.rounds, options.seconds)
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
