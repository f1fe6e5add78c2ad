"""A client that spreads its requests over the replicas' own ports.

    KSRV_TOKEN=... python examples/ray/client.py http://127.0.0.1:8000 double

It asks Ray's ingress where the replicas listen, takes each in turn, and asks again every few seconds and
when a connection is refused, so that replicas may come, go and die. For replicas with TLS, SSL_CERT_FILE
names the authority that has signed their certificates.
"""

import itertools
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

ASK_SECONDS = 5.0


def call(url: str, body: bytes | None = None) -> bytes:
    """Return the answer to a request with the caller's token."""
    request = urllib.request.Request(url, body)
    if token := os.environ.get("KSRV_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def replicas(ingress: str) -> list[str]:
    """Return the URLs of the replicas."""
    found = json.loads(call(f"{ingress}/-/addresses"))["replicas"]
    return [f"{'https' if replica['tls'] else 'http'}://{replica['http']}" for replica in found]


class Replicas:
    """Replicas in turn.

    Args:
        ingress: The URL of Ray's ingress with the application's prefix.
    """

    def __init__(self, ingress: str) -> None:
        self._ingress = ingress
        self._asked = 0.0
        self._turn: Iterator[str] = iter(())

    def next(self) -> str:
        """Return the URL of the replica whose turn it is."""
        if time.monotonic() > self._asked + ASK_SECONDS:
            self._turn, self._asked = itertools.cycle(replicas(self._ingress)), time.monotonic()
        return next(self._turn)

    def forget(self) -> None:
        """Have the list asked for anew, because one of its replicas is gone."""
        self._asked = 0.0

    def infer(self, model: str, body: bytes, attempts: int = 5) -> bytes:
        """Return the answer to a request, which is sent again only while no connection comes about."""
        for attempt in range(attempts):
            try:
                return call(f"{self.next()}/v2/models/{model}/infer", body)
            except (urllib.error.URLError, StopIteration) as error:
                refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
                if not (refused or isinstance(error, StopIteration)):
                    raise
                self.forget()
                time.sleep(0.2 * attempt)
        raise ConnectionRefusedError(f"no replica of {self._ingress} accepts connections")


def main() -> None:
    ingress, model = sys.argv[1:3]
    client = Replicas(ingress)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]
    body = json.dumps({"inputs": inputs}).encode()
    for _ in range(4):
        print(client.infer(model, body).decode())


if __name__ == "__main__":
    main()
