"""KServe v2 over REST with nothing but `requests`.

    python rest_client.py http://127.0.0.1:8080 MODEL photo.jpg drawing.png ...

Sends the first image alone, then all images as one batch, then a raw tensor, and prints the answers.
"""

import argparse
import array
import json
import math
from pathlib import Path
from typing import Any

import requests

HEADER_LENGTH = "Inference-Header-Content-Length"


def infer(
    session: requests.Session, url: str, inputs: list[dict[str, Any]], blocks: list[bytes]
) -> dict[str, Any]:
    """POST the JSON header and the binary blocks; the answer is JSON."""
    header = json.dumps({"inputs": inputs}).encode()
    answer = session.post(
        f"{url}/infer", data=b"".join([header, *blocks]), headers={HEADER_LENGTH: str(len(header))}
    )
    if answer.status_code != 200:
        raise SystemExit(f"{answer.status_code}: {answer.json()['error']}")
    document: dict[str, Any] = answer.json()
    return document


def show(title: str, answer: dict[str, Any]) -> None:
    for output in answer["outputs"]:
        values = json.dumps(output["data"])
        print(f"{title}: {output['name']} {output['datatype']} {output['shape']} {values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("images", nargs="+", type=Path)
    chosen = parser.parse_args()
    session = requests.Session()
    url = f"{chosen.url}/v2/models/{chosen.model}"
    declared = session.get(url).json()["inputs"][0]
    name = declared["name"]
    files = [path.read_bytes() for path in chosen.images]

    # One image: its bytes as they are, and their number.
    image = {
        "name": name,
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": len(files[0])},
    }
    show("one image", infer(session, url, [image], files[:1]))

    # A batch: the images one after the other, of any size and format, and a list of their byte sizes.
    batch = {
        "name": name,
        "datatype": "BYTES",
        "shape": [len(files)],
        "parameters": {"binary_data_size": ",".join(str(len(file)) for file in files)},
    }
    show("batch", infer(session, url, [batch], files))

    # A raw tensor: little-endian values in row-major order. Here a ramp from 0 to 1.
    shape = [1, *(size if size > 0 else 8 for size in declared["shape"][1:])]
    count = math.prod(shape)
    ramp = array.array("f", (index / (count - 1) for index in range(count))).tobytes()
    tensor = {
        "name": name,
        "datatype": "FP32",
        "shape": shape,
        "parameters": {"binary_data_size": len(ramp)},
    }
    show("raw tensor", infer(session, url, [tensor], [ramp]))


if __name__ == "__main__":
    main()
