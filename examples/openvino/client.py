"""Send a sequence of amounts to `ksrv serve examples/openvino/config.json`, and print the total after each."""

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from ksrv.client import Client


def totals(url: str, name: str, amounts: Sequence[float]) -> Iterator[float]:
    """Yield the total after each amount.

    Args:
        url: The server's.
        name: The id of the sequence.
        amounts: The values that it sends, one request for each.
    """
    last = len(amounts) - 1
    with Client(url) as client:
        for place, amount in enumerate(amounts):
            about: dict[str, bool | str] = {
                "sequence_id": name,
                "sequence_start": place == 0,
                "sequence_end": place == last,
            }
            inputs = {"amount": np.array([[amount]], np.float32)}
            yield float(client.infer("total", inputs, parameters=about)["total"][0, 0])


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    for total in totals(url, "till", [1, 2, 3]):
        print(total)
