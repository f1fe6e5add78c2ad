"""The main job in one command: train, write a model repository, serve it, and be its client.

Three ways carry the same held-out digits to the server: image files over REST, image files over
gRPC, and raw FP32 tensors over both. All must read at least 95 % of the digits and agree with each
other digit by digit.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import requests
import tritonclient.grpc as triton
from training import SIDE, Digit, decode, held_out_and_training, train

from ksrv.testing import Server, ServerFailed

HERE = Path(__file__).parent
BATCH = 24
REQUIRED_ACCURACY = 0.95
SHADES = " .:-=+*#%@"

Infer = Callable[[list[bytes]], np.ndarray]


def write_repository(root: Path, training_digits: list[Digit]) -> None:
    """Write the repository with its one model; a model trained earlier is kept."""
    folder = root / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / "model.yaml", folder / "model.yaml")
    file = folder / "digits.onnx"
    if file.exists():
        print(f"model      kept from an earlier run: {file}")
        return
    start = time.monotonic()
    train(training_digits, file)
    print(
        f"model      trained on {len(training_digits)} digits in {time.monotonic() - start:.1f} s"
    )


def over_rest_as_files(session: requests.Session, url: str) -> Infer:
    """One POST: the JSON header, then the files one after the other, their sizes as a string."""

    def infer(files: list[bytes]) -> np.ndarray:
        sizes = ",".join(str(len(file)) for file in files)
        image = {
            "name": "image",
            "shape": [len(files)],
            "datatype": "BYTES",
            "parameters": {"binary_data_size": sizes},
        }
        return post(session, url, image, b"".join(files))

    return infer


def over_rest_as_tensor(session: requests.Session, url: str) -> Infer:
    """One POST: the JSON header, then the FP32 values that the client decoded itself."""

    def infer(files: list[bytes]) -> np.ndarray:
        tensor = np.stack([decode(file) for file in files])
        image = {
            "name": "image",
            "shape": list(tensor.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        return post(session, url, image, tensor.tobytes())

    return infer


def post(session: requests.Session, url: str, image: dict[str, Any], payload: bytes) -> np.ndarray:
    header = json.dumps({"inputs": [image]}).encode()
    answer = session.post(
        f"{url}/v2/models/digits/infer",
        data=header + payload,
        headers={"Inference-Header-Content-Length": str(len(header))},
        timeout=30,
    )
    answer.raise_for_status()
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    return np.array(outputs["digit"])


def over_grpc_as_files(client: triton.InferenceServerClient) -> Infer:
    """The same files as BYTES elements through tritonclient."""

    def infer(files: list[bytes]) -> np.ndarray:
        image = triton.InferInput("image", [len(files)], "BYTES")
        image.set_data_from_numpy(np.array(files, dtype=object))
        return np.asarray(client.infer("digits", [image]).as_numpy("digit"))

    return infer


def over_grpc_as_tensor(client: triton.InferenceServerClient) -> Infer:
    """The decoded values as a raw FP32 tensor through tritonclient."""

    def infer(files: list[bytes]) -> np.ndarray:
        tensor = np.stack([decode(file) for file in files])
        image = triton.InferInput("image", list(tensor.shape), "FP32")
        image.set_data_from_numpy(tensor)
        return np.asarray(client.infer("digits", [image]).as_numpy("digit"))

    return infer


def measure(infer: Infer, digits: list[Digit]) -> tuple[np.ndarray, list[float]]:
    """Return the predictions for all digits and the seconds that each request took."""
    files = [digit.file for digit in digits]
    predictions, seconds = [], []
    infer(files[:BATCH])  # the first call pays for the connection
    for first in range(0, len(files), BATCH):
        start = time.perf_counter()
        predictions.append(infer(files[first : first + BATCH]))
        seconds.append(time.perf_counter() - start)
    return np.concatenate(predictions), seconds


def draw(digits: list[Digit], predictions: np.ndarray, count: int = 6) -> str:
    """Return a few digits side by side as text, with what was read and what is true."""
    lines = []
    for row in range(8):
        cells = (
            "".join(
                SHADES[int(value) * (len(SHADES) - 1) // 255] * 2 for value in digit.picture[row]
            )
            for digit in digits[:count]
        )
        lines.append("  ".join(cells))
    captions = (
        f"read {read}, is {digit.truth}".ljust(16)
        for digit, read in zip(digits[:count], predictions, strict=False)
    )
    lines.append("  ".join(captions))
    return "\n".join(lines)


def report(name: str, predictions: np.ndarray, digits: list[Digit], seconds: list[float]) -> float:
    """Print one line of the table and return the accuracy."""
    accuracy = float(np.mean(predictions == [digit.truth for digit in digits]))
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    rate = len(seconds) / sum(seconds)
    print(
        f"{name:<28}{accuracy:>9.1%}{rate:>12.0f}{statistics.median(seconds) * 1e3:>10.2f}"
        f"{p99 * 1e3:>10.2f}"
    )
    return accuracy


def compare(server: Server, digits: list[Digit]) -> bool:
    """Send the digits every way, print the table, and say whether all is well."""
    session = requests.Session()
    client = triton.InferenceServerClient(server.grpc)
    ways = {
        "REST, files + size list": over_rest_as_files(session, server.url),
        "gRPC, files": over_grpc_as_files(client),
        f"REST, raw FP32 [N,{SIDE},{SIDE},1]": over_rest_as_tensor(session, server.url),
        f"gRPC, raw FP32 [N,{SIDE},{SIDE},1]": over_grpc_as_tensor(client),
    }
    results = {name: measure(infer, digits) for name, infer in ways.items()}
    predictions = next(iter(results.values()))[0]
    print(f"\n{draw(digits, predictions)}\n")
    print(
        f"{f'{BATCH} digits a request':<28}{'right':>9}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}"
    )
    accuracies = [report(name, read, digits, seconds) for name, (read, seconds) in results.items()]
    client.close()
    good = True
    if min(accuracies) < REQUIRED_ACCURACY:
        print(f"\nFAILED: a way reads fewer than {REQUIRED_ACCURACY:.0%} of the digits right")
        good = False
    if any(not np.array_equal(read, predictions) for read, _ in results.values()):
        print("\nFAILED: the ways do not give the same predictions")
        good = False
    return good


def curl_lines(server: Server, root: Path, digit: Digit) -> str:
    """Return the commands that send one held-out digit; its file is put beside the models."""
    file = root / "digit.png"
    file.write_bytes(digit.file)
    url = f"{server.url}/v2/models/digits/infer"
    return f"  curl -F image=@{file} {url}\n\nand any picture of your own, of any size:\n\n  curl -F image=@photo.jpg {url}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--models", type=Path, default=Path("demo-models"))
    arguments.add_argument("--once", action="store_true", help="end after the table")
    arguments.add_argument("--http", default="127.0.0.1:8080", help="HTTP address HOST:PORT")
    arguments.add_argument("--grpc", default="127.0.0.1:9000", help="gRPC address HOST:PORT")
    chosen = arguments.parse_args()
    held_out, training_digits = held_out_and_training()
    write_repository(chosen.models, training_digits)
    addresses = {} if chosen.once else {"http": chosen.http, "grpc": chosen.grpc}
    try:
        return run(chosen, addresses, held_out)
    except ServerFailed as failure:
        errors = [line for line in str(failure).splitlines() if line.startswith("Error: ")]
        if not errors:
            raise
        print(errors[-1], file=sys.stderr)
        return 1


def run(chosen: argparse.Namespace, addresses: dict[str, Any], held_out: list[Digit]) -> int:
    """Serve the repository, be its client, and leave the server up unless the caller stops it."""
    start = time.monotonic()
    with Server(chosen.models, **addresses) as server:
        print(
            f"server     ready after {time.monotonic() - start:.1f} s: {server.url}, gRPC {server.grpc}"
        )
        good = compare(server, held_out)
        if good and not chosen.once:
            shown = next(digit for digit in held_out if digit.file.startswith(b"\x89PNG"))
            print(f"\nThe server stays up until you press Ctrl-C. One digit, a {shown.truth}:\n")
            print(curl_lines(server, chosen.models, shown), end="\n\n")
            try:
                server.process.wait()
            except KeyboardInterrupt:
                print("stopping")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
