"""KServe v2 over gRPC with Triton's client: pip install 'tritonclient[grpc]'.

    python grpc_client.py 127.0.0.1:9000 MODEL photo.jpg drawing.png ...

Sends the first image alone, then all images as one batch, then a raw tensor, and prints the answers.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton


def image_input(name: str, files: list[bytes]) -> triton.InferInput:
    """Encoded images are a BYTES tensor with one element for each file."""
    tensor = triton.InferInput(name, [len(files)], "BYTES")
    tensor.set_data_from_numpy(np.array(files, dtype=object))
    return tensor


def show(title: str, answer: triton.InferResult) -> None:
    for output in answer.get_response().outputs:
        values = json.dumps(answer.as_numpy(output.name).tolist())
        print(f"{title}: {output.name} {output.datatype} {list(output.shape)} {values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("images", nargs="+", type=Path)
    chosen = parser.parse_args()
    files = [path.read_bytes() for path in chosen.images]
    with triton.InferenceServerClient(chosen.address) as client:
        declared = client.get_model_metadata(chosen.model).inputs[0]
        show("one image", client.infer(chosen.model, [image_input(declared.name, files[:1])]))
        show("batch", client.infer(chosen.model, [image_input(declared.name, files)]))

        shape = [1, *(size if size > 0 else 8 for size in declared.shape[1:])]
        ramp = np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        tensor = triton.InferInput(declared.name, shape, "FP32")
        tensor.set_data_from_numpy(ramp)
        show("raw tensor", client.infer(chosen.model, [tensor]))


if __name__ == "__main__":
    main()
