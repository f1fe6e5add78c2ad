"""Asks a server by KServe's own client: kserve_program.py (rest-v1 | rest-v2 | grpc) HTTP GRPC."""

import asyncio
import sys

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

ROWS = np.array([[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 1.5, 0.6]], np.float32)


async def rest_v1(url):
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        assert await client.is_server_live(url)
        assert await client.is_model_ready(url, "sklearn-iris")
        asked = {"instances": ROWS.tolist()}
        answer = await client.infer(url, asked, model_name="sklearn-iris")
        assert answer == {"predictions": [1, 0]}, answer


async def rest_v2(url):
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "sklearn-v2-iris")
        for binary in (True, False):
            given = InferInput("input-0", list(ROWS.shape), "FP32")
            given.set_data_from_numpy(ROWS, binary_data=binary)
            wanted = [RequestedOutput("output-0", {"binary_data": binary})]
            request = InferRequest("sklearn-v2-iris", [given], request_outputs=wanted)
            answer = await client.infer(url, request, model_name="sklearn-v2-iris")
            assert answer.outputs[0].as_numpy().tolist() == [1, 0]


async def grpc(address):
    client = InferenceGRPCClient(address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("sklearn-v2-iris")
    for binary in (True, False):
        given = InferInput("input-0", list(ROWS.shape), "FP32")
        given.set_data_from_numpy(ROWS, binary_data=binary)
        answer = await client.infer(InferRequest("sklearn-v2-iris", [given]))
        assert answer.outputs[0].as_numpy().tolist() == [1, 0]
    await client.close()


way, http_address, grpc_address = sys.argv[1:]
if way == "grpc":
    asyncio.run(grpc(grpc_address))
else:
    asyncio.run({"rest-v1": rest_v1, "rest-v2": rest_v2}[way](f"http://{http_address}"))
print("all of it works")
