"""Asks a model of Triton's Python backend for an answer to zeros, as its metadata describes them.

python python_model_program.py HTTP GRPC MODEL [NAME=JSON ...] [--refuses TEXT] [--unready TEXT] [--sequence]

NAME=JSON is an input's value in place of 0, or a list of all its values.
"""

import json
import sys
import threading

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def values(tensor, given):
    """Return an input: what the command line gives, else zeros or empty texts."""
    if isinstance(given.get(tensor.name), list):
        return np.array(given[tensor.name], triton_to_np_dtype(tensor.datatype))
    shape = [1 if size == -1 else size for size in tensor.shape]
    if tensor.datatype == "BYTES":
        return np.array([given.get(tensor.name, "") or ""] * int(np.prod(shape)), object).reshape(
            shape
        )
    dtype = triton_to_np_dtype(tensor.datatype) or np.float32
    return np.full(shape, given.get(tensor.name, 0), dtype)


def main():
    _, address, model, *rest = sys.argv[1:]
    wanted = rest[rest.index("--refuses") + 1] if "--refuses" in rest else ""
    given = dict(one.split("=", 1) for one in rest if "=" in one)
    given = {name: json.loads(text) for name, text in given.items()}
    options = {"sequence_id": 1, "sequence_start": True} if "--sequence" in rest else {}
    client = grpcclient.InferenceServerClient(address)
    if "--unready" in rest:
        told = rest[rest.index("--unready") + 1]
        try:
            client.get_model_metadata(model)
        except InferenceServerException as error:
            if told not in str(error):
                raise SystemExit(f"{model}: expected {told!r}, found {error}") from None
            print(f"PASS: {model} is not ready: {error}")
            return
        raise SystemExit(f"{model} is ready")
    metadata = client.get_model_metadata(model)
    config = client.get_model_config(model).config
    inputs = []
    for tensor in metadata.inputs:
        array = values(tensor, given)
        item = grpcclient.InferInput(tensor.name, array.shape, tensor.datatype)
        item.set_data_from_numpy(array)
        inputs.append(item)
    answers, done = [], threading.Event()

    def take(result, error):
        answers.append((result, error))
        final = result and result.get_response().parameters.get("triton_final_response")
        if error or (final and final.bool_param):
            done.set()

    if config.model_transaction_policy.decoupled:
        client.start_stream(take)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        if not done.wait(60):
            raise SystemExit(f"{model}: no final answer in 60 s")
        client.stop_stream()
    else:
        try:
            answers.append((client.infer(model, inputs, **options), None))
        except InferenceServerException as error:
            answers.append((None, error))
    errors = [str(error) for _, error in answers if error]
    if wanted:
        assert errors and wanted in errors[0], f"{model}: expected {wanted!r}, found {errors}"
    else:
        assert not errors, errors
        for result, _ in answers:
            for output in result.get_response().outputs:
                result.as_numpy(output.name)
    print(f"PASS: {model}: {len(answers)} answers")


main()
