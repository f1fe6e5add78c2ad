"""Drives KServe's own REST and gRPC clients against a server; run by a Python that has `kserve`.

    python kserve_client.py http://127.0.0.1:8080 127.0.0.1:8001

It prints "done" when everything came back as it should.
"""

import asyncio
import sys

import grpc
import httpx
import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

VALUES = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "INT64": np.array([[-(2**63), 2**53 + 1]], np.int64),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "FP16": np.array([[0.5, -2.0]], np.float16),
    "FP32": np.array([[0.5, -2.0]], np.float32),
    "FP64": np.array([[0.1, 5e-324]], np.float64),
    "BYTES": np.array([[b"a", "é".encode()]], object),
}


def tensor(values, datatype, binary):
    made = InferInput("x", list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


async def drive(url):
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        assert await client.is_server_live(url)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "witness")
        for datatype, values in VALUES.items():
            for binary in (True, False):
                if datatype == "FP16" and not binary:
                    continue
                request = InferRequest(
                    model_name=f"echo_{datatype}",
                    infer_inputs=[tensor(values, datatype, binary)],
                    request_outputs=[RequestedOutput("y", {"binary_data": binary})],
                )
                answer = await client.infer(url, request, model_name=f"echo_{datatype}")
                got = answer.outputs[0].as_numpy()
                wanted = values
                if datatype == "BYTES":
                    got = [e.encode() if isinstance(e, str) else bytes(e) for e in got.ravel()]
                    wanted = values.ravel().tolist()
                assert np.array_equal(got, wanted), (datatype, binary, got)
                assert answer.model_name == f"echo_{datatype}"
        request = InferRequest(
            model_name="witness",
            request_id="7",
            infer_inputs=[tensor(np.ones((1, 4), np.float32), "FP32", True)],
            parameters={"binary_data_output": True, "text": "a", "whole": 7},
        )
        answer = await client.infer(url, request, model_name="witness")
        assert answer.id == "7"
        assert answer.get_output_by_name("y").as_numpy().tolist() == [[1.0, 1.0, 1.0, 1.0]]
        plain = {
            "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]
        }
        answer = await client.infer(url, plain, model_name="witness")
        assert answer.get_output_by_name("y").data == [1.0, 2.0, 3.0, 4.0]
        told = ""
        try:
            await client.infer(url, plain, model_name="nope")
        except httpx.HTTPStatusError as error:
            told = str(error)
        assert "nope" in told and "404" in told, told


async def drive_grpc(address):
    client = InferenceGRPCClient(address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("witness")
    for datatype, values in VALUES.items():
        request = InferRequest(
            model_name=f"echo_{datatype}",
            request_id="7",
            infer_inputs=[tensor(values, datatype, True)],
        )
        answer = await client.infer(request)
        assert answer.id == "7" and answer.model_name == f"echo_{datatype}"
        got = answer.outputs[0].as_numpy()
        if datatype == "BYTES":
            got = [e.encode() if isinstance(e, str) else bytes(e) for e in got.ravel()]
            values = values.ravel().tolist()
        assert np.array_equal(got, values), (datatype, got)
    code = None
    try:
        await client.infer(InferRequest("nope", [tensor(VALUES["FP32"], "FP32", True)]))
    except grpc.RpcError as error:
        code = error.code()
    assert code is grpc.StatusCode.NOT_FOUND, code
    await client.close()


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1]))
    asyncio.run(drive_grpc(sys.argv[2]))
    print("done")
