"""Asks the ensemble `colour` of a server for the colour of a picture, with Triton's own client."""

import sys

import numpy as np
import tritonclient.http as triton


def main(address: str) -> None:
    """Send an orange picture and print the labels."""
    client = triton.InferenceServerClient(address)
    picture = np.full((1, 48, 64, 3), (230, 120, 20), np.uint8)
    tensor = triton.InferInput("picture", list(picture.shape), "UINT8")
    tensor.set_data_from_numpy(picture)
    wanted = triton.InferRequestedOutput("colour", class_count=3)
    answer = client.infer("colour", [tensor], outputs=[wanted])
    for entry in answer.as_numpy("colour").reshape(-1):
        score, _, label = entry.decode().split(":")
        print(f"{label} {float(score):.3f}")
    client.close()


if __name__ == "__main__":
    main(sys.argv[1])
