"""The models of examples/pretrained in ksrv, beside their packages in a FastAPI app with 16 threads.

    python examples/pretrained/prepare.py models
    python benchmarks/load/pretrained.py models [--rounds 3] [NAME=REQUESTS ...]

Sixteen clients send the same request to one server, then to the other, in interleaved rounds. The table has the
milliseconds of CPU time of all processes of a server for a request, and the ratio: above 1, FastAPI needs more. On a
busy machine the CPU time means more than the time of the clock.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
from servers import LoadedServer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples/pretrained"))
import packages  # noqa: E402

CLIENTS = 16
REQUESTS = {
    "nsfw": 32,
    "nude": 32,
    "faces": 48,
    "ocr": 16,
    "voice": 400,
    "wake": 96,
    "notes": 16,
    "pitch": 200,
    "filetype": 200,
    "words": 400,
    "minilm": 64,
    "language": 400,
    "vowels": 200,
    "captcha": 48,
    "password": 100,
    "speech": 16,
    "gender": 300,
}
"""The requests of a round; `cutout` computes for seconds, so name it if you have the time: cutout=4."""

Request = tuple[str, bytes, str]


def requests_of(name: str, server: str, client: str) -> Iterator[Request]:
    """Yield a client's requests to a server: path, body and content type.

    Args:
        client: The number of the client, and the round; the first round begins its sequence.
    """
    kind = "application/json"
    path = f"/v2/models/{name}/generate" if server == "ksrv" else f"/json/{name}"
    if name in ("voice", "wake"):
        random = np.random.default_rng(0)
        sound = (
            0.1 * random.normal(size=576) if name == "voice" else 3000 * random.normal(size=1280)
        )
        samples = sound.astype(np.float32 if name == "voice" else np.int16).tolist()
        for number in count():
            sequence, _, round = client.partition(" ")
            is_first = round == "before" and number == 0
            start = {"sequence_id": sequence, "sequence_start": is_first}
            of_ksrv = {"samples": samples, "parameters": start}
            of_app = {"samples": [samples], "sequence": sequence}
            yield path, json.dumps(of_ksrv if server == "ksrv" else of_app).encode(), kind
    question = packages.QUESTIONS[name]()
    input, value = next(iter(question.items()))
    if isinstance(value, bytes):
        kind = "audio/wav" if name == "notes" else "application/octet-stream"
        path = f"/v2/models/{name}/infer" if server == "ksrv" else f"/file/{name}/{input}"
    elif isinstance(value, np.ndarray):
        question[input] = value.tolist()
    body = value if isinstance(value, bytes) else json.dumps(question).encode()
    while True:
        yield path, body, kind


def milliseconds(server: LoadedServer, name: str, requests: int, round: object) -> float:
    """Return the CPU time of a request, of which all clients send their share."""

    def ask(client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        sent = requests_of(name, server.name, f"{client} {round}")
        for _, (path, body, kind) in zip(range(client, requests, CLIENTS), sent, strict=False):
            connection.request("POST", path, body, {"Content-Type": kind, "Accept": "*/*"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{server.name}: {name}: {answer.status} {text[:200]!r}")

    before = server.cpu_seconds()
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(ask, range(CLIENTS)))
    return 1000 * (server.cpu_seconds() - before) / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME=REQUESTS")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    made = {path.name for path in arguments.models.iterdir()}
    chosen = dict(one.split("=") for one in arguments.names) or REQUESTS
    app = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent / "peers")]
    ksrv = [sys.executable, "-m", "ksrv", "serve", str(arguments.models.resolve())]
    servers = (
        LoadedServer(
            "ksrv",
            [*ksrv, "--http", "127.0.0.1:{port}", "--grpc", "off"],
        ),
        LoadedServer(
            "fastapi",
            [*app, "--port", "{port}", "--log-level", "warning", "fastapi_pretrained:app"],
            {"MODELS": str(arguments.models.resolve())},
        ),
    )
    for server in servers:
        server.start(None)
    ready = f"http://127.0.0.1:{servers[0].port}/v2/health/ready"
    for _ in range(600):
        try:
            urllib.request.urlopen(ready, timeout=5).close()
            break
        except OSError:
            time.sleep(1)
    print(f"{'model':10} {'ksrv, ms':>10} {'FastAPI, ms':>12} {'ratio':>6}")
    try:
        for name in sorted(chosen.keys() & made):
            requests = int(chosen[name])
            for server in servers:
                milliseconds(server, name, CLIENTS, "before")
            rounds = [
                [milliseconds(server, name, requests, number) for server in servers]
                for number in range(arguments.rounds)
            ]
            own, other = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(other / own for own, other in rounds)
            print(f"{name:10} {own:10.2f} {other:12.2f} {ratio:6.2f}", flush=True)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
