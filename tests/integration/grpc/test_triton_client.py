"""tritonclient.grpc and tritonclient.grpc.aio, unmodified, against a real server."""

import asyncio
import queue
import time

import numpy as np
import pytest

from tests.support.wire.grpc_calls import running

triton = pytest.importorskip("tritonclient.grpc")
triton_aio = pytest.importorskip("tritonclient.grpc.aio")
from tritonclient.utils import InferenceServerException  # noqa: E402

VALUES = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 1, 255]], np.uint8),
    "UINT16": np.array([[0, 1, 65535]], np.uint16),
    "UINT32": np.array([[0, 1, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 1, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-(2**15), 0, 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 0, 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 0, 2**63 - 1]], np.int64),
    "FP16": np.array([[0.5, -1.0, 65504.0]], np.float16),
    "FP32": np.array([[0.5, -1.0, 3e38]], np.float32),
    "FP64": np.array([[0.1, -1e300, 5e-324]], np.float64),
    "BYTES": np.array([[b"", b"a\x00", "é".encode()]], object),
}


@pytest.fixture
def address(engine):
    with running(engine) as found:
        yield found


@pytest.fixture
def client(address):
    with triton.InferenceServerClient(address) as found:
        yield found


def tensor(values, datatype, name="x"):
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def row(value=0.0):
    return tensor(np.full((1, 4), value, np.float32), "FP32")


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_round_trips(client, datatype):
    values = VALUES[datatype]
    found = client.infer("echo", [tensor(values, datatype)]).as_numpy("x")
    np.testing.assert_array_equal(found, values)


def test_bfloat16_round_trips(client):
    # The client's own arrays for BF16 need another package; its wire form does not.
    made = triton.InferInput("x", [1, 3], "BF16")
    made._raw_content = np.array([[0x3F00, 0xBF80, 0x4000]], np.uint16).tobytes()
    found = client.infer("brain", [made]).get_response()
    assert found.outputs[0].datatype == "BF16"
    assert found.raw_output_contents[0] == made._raw_content


def test_every_option_of_infer_works(client):
    found = client.infer(
        "add",
        [row()],
        model_version="1",
        outputs=[triton.InferRequestedOutput("y")],
        request_id="42",
        sequence_id=5,
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout=10_000_000,
        client_timeout=20,
        headers={"x-mine": "1"},
        compression_algorithm="gzip",
        parameters={"text": "t", "number": 1, "fraction": 1.5, "flag": True},
    )
    assert found.as_numpy("y").tolist() == [[1.0] * 4]
    assert found.get_response().id == "42"


def test_custom_parameters_and_sequence_reach_the_engine(engine, client):
    client.infer(
        "echo",
        [row()],
        sequence_id="s",
        parameters={"text": "t", "number": 1, "fraction": 1.5, "flag": True},
    )
    (handle,) = engine.handles
    assert handle.request.parameters == {
        "sequence_id": "s",
        "sequence_start": False,
        "sequence_end": False,
        "text": "t",
        "number": 1,
        "fraction": 1.5,
        "flag": True,
    }


def test_requested_outputs_and_classification_reach_the_engine(engine, client):
    outputs = [triton.InferRequestedOutput("x", class_count=3)]
    client.infer("echo", [row()], outputs=outputs)
    (found,) = engine.handles[0].request.outputs
    assert (found.name, found.classification) == ("x", 3)


def test_asynchronous_infer(client):
    answers = queue.Queue()
    for number in range(10):
        client.async_infer("add", [row(number)], lambda result, error: answers.put((result, error)))
    found = []
    for _ in range(10):
        result, error = answers.get(timeout=20)
        assert error is None
        found.append(result.as_numpy("y")[0, 0])
    assert sorted(found) == list(range(1, 11))


def test_stream(client):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(5):
        client.async_stream_infer("add", [row(number)], request_id=str(number))
    client.async_stream_infer("nope", [row()], request_id="bad")
    client.async_stream_infer("add", [row(9)], enable_empty_final_response=True)
    found = [answers.get(timeout=20) for _ in range(7)]
    client.stop_stream()
    assert [result.get_response().id for result, _ in found[:5]] == list("01234")
    assert [result.as_numpy("y")[0, 0] for result, _ in found[:5]] == [1, 2, 3, 4, 5]
    assert "nope" in str(found[5][1])
    assert found[6][0].get_response().parameters["triton_final_response"].bool_param


def test_errors_carry_their_status(client):
    for model, status in (("nope", "NOT_FOUND"), ("full", "RESOURCE_EXHAUSTED")):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, [row()])
        assert caught.value.status() == f"StatusCode.{status}"
    with pytest.raises(InferenceServerException) as caught:
        client.infer("slow", [row()], client_timeout=0.3)
    assert "eadline" in str(caught.value)


def test_metadata_health_and_repository_work(engine, client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add", "1")
    assert client.get_server_metadata().name == "ksrv"
    assert client.get_model_metadata("add").inputs[0].name == "x"
    assert client.get_model_config("add", as_json=True)["config"]["max_batch_size"] == 8
    assert client.get_inference_statistics("add").model_stats[0].name == "add"
    assert "add" in {model.name for model in client.get_model_repository_index().models}
    client.load_model("add")
    client.unload_model("add")
    assert engine.changes == [("load", "add"), ("unload", "add")]
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert client.get_log_settings().settings["log_error"].bool_param
    for refused in (
        lambda: client.load_model("add", config="{}"),
        lambda: client.update_trace_settings(settings={"trace_rate": "2"}),
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
    ):
        with pytest.raises(InferenceServerException):
            refused()


def test_keepalive_pings_are_accepted(address):
    """Pings are more frequent than calls, and begin before the first call. The server continues to serve."""
    options = triton.KeepAliveOptions(
        keepalive_time_ms=50,
        keepalive_timeout_ms=20_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with triton.InferenceServerClient(address, keepalive_options=options) as client:
        for number in range(4):
            assert client.infer("add", [row(number)]).as_numpy("y")[0, 0] == number + 1
            time.sleep(0.3)


def test_asyncio_client(address):
    async def run():
        async with triton_aio.InferenceServerClient(address) as client:
            assert await client.is_server_ready()
            answers = await asyncio.gather(
                *(client.infer("add", [row(number)]) for number in range(20))
            )
            assert [found.as_numpy("y")[0, 0] for found in answers] == list(range(1, 21))

            async def requests():
                for number in range(5):
                    yield {"model_name": "add", "inputs": [row(number)], "request_id": str(number)}

            ids = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                ids.append(result.get_response().id)
            assert ids == list("01234")
            with pytest.raises(InferenceServerException):
                await client.infer("nope", [row()])

    asyncio.run(run())
