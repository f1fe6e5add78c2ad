"""KServe v2 over REST with a bare socket: the exact bytes on the wire.

    python raw_socket_client.py 127.0.0.1:8080 MODEL INPUT HEIGHTxWIDTHxCHANNELS photo.jpg drawing.png ...

Sends the first image alone, then all images as one batch, then a raw tensor, and prints the answers.
"""

import argparse
import json
import math
import socket
import struct
from pathlib import Path
from typing import Any


def send(
    connection: socket.socket, model: str, header: dict[str, Any], blocks: list[bytes]
) -> dict[str, Any]:
    """Write one request and read its answer; the connection stays open for the next."""
    text = json.dumps(header).encode()
    body = b"".join([text, *blocks])
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\n"
        f"Host: ksrv\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"\r\n"
    )
    connection.sendall(head.encode() + body)
    return receive(connection)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read one answer whose length is announced."""
    with connection.makefile("rb") as stream:
        status = stream.readline().split()[1]
        length = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        answer: dict[str, Any] = json.loads(stream.read(length))
    if status != b"200":
        raise SystemExit(f"{status.decode()}: {answer['error']}")
    return answer


def show(title: str, answer: dict[str, Any]) -> None:
    for output in answer["outputs"]:
        values = json.dumps(output["data"])
        print(f"{title}: {output['name']} {output['datatype']} {output['shape']} {values}")


def entry(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    """The JSON header of a request with one input whose bytes follow it."""
    parameters = {"binary_data_size": size}
    return {
        "inputs": [{"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("size", help="HEIGHTxWIDTHxCHANNELS of the raw tensor")
    parser.add_argument("images", nargs="+", type=Path)
    chosen = parser.parse_args()
    host, _, port = chosen.address.rpartition(":")
    files = [path.read_bytes() for path in chosen.images]
    # Every BYTES element may be written after its length, four bytes in little-endian order.
    elements = [struct.pack("<I", len(file)) + file for file in files]
    with socket.create_connection((host, int(port))) as connection:
        image = entry(chosen.input, "BYTES", [1], len(elements[0]))
        show("one image", send(connection, chosen.model, image, elements[:1]))
        size = sum(len(element) for element in elements)
        batch = entry(chosen.input, "BYTES", [len(files)], size)
        show("batch", send(connection, chosen.model, batch, elements))
        shape = [1, *(int(part) for part in chosen.size.split("x"))]
        count = math.prod(shape)
        ramp = struct.pack(f"<{count}f", *(index / (count - 1) for index in range(count)))
        tensor = entry(chosen.input, "FP32", shape, len(ramp))
        show("raw tensor", send(connection, chosen.model, tensor, [ramp]))


if __name__ == "__main__":
    main()
