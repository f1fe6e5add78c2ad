"""tritonclient's four clients, unmodified, with every option of `infer`, against a real server."""

import asyncio
import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from ksrv.testing import Server
from tests.support.model_files.triton_models import ECHO, write_echoes, write_witness
from tests.support.models import write_model
from tests.support.wait_until import wait_until

MODULES = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
ROW = np.array([[1.0, 4.0, 3.0, 2.0]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("clients")
    write_witness(root)
    write_witness(root, "slow", "parameters: {seconds: 0.3}\n")
    write_witness(root, "batched", "batching: {max_batch_size: 4}\n")
    write_echoes(root)
    for version in ("1", "2"):
        yaml = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\n"
        yaml += "outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]\nversion_policy: all\n"
        handler = ECHO.replace('"y": x', f'"y": x * {version}')
        write_model(
            root, f"versioned/{version}", handler, yaml.replace("version_policy: all\n", "")
        )
    (root / "versioned" / "model.yaml").write_text("handler: handler.py\nversion_policy: all\n")
    with Server(root, compress_responses=True) as running:
        yield running


class Driver:
    """Calls any of the four clients as if none were asynchronous."""

    def __init__(self, kind, server):
        self.kind = kind
        self.module = MODULES[kind]
        self.is_grpc = "grpc" in kind
        self._address = server.grpc if self.is_grpc else server.http

    def call(self, name, *arguments, **keywords):
        if "aio" in self.kind:
            return asyncio.run(self._call(name, arguments, keywords))
        with self.module.InferenceServerClient(self._address) as client:
            return getattr(client, name)(*arguments, **keywords)

    async def _call(self, name, arguments, keywords):
        async with self.module.InferenceServerClient(self._address) as client:
            return await getattr(client, name)(*arguments, **keywords)

    def infer(self, model, inputs, **options):
        return self.call("infer", model, inputs, **options)

    def tensor(self, values, datatype="FP32", name="x", **form):
        made = self.module.InferInput(name, list(values.shape), datatype)
        made.set_data_from_numpy(values, **({} if self.is_grpc else form))
        return made

    def output(self, name, classes=0, **form):
        return self.module.InferRequestedOutput(
            name, class_count=classes, **({} if self.is_grpc else form)
        )

    def refused(self, status, code, name, *arguments, **keywords):
        with pytest.raises(InferenceServerException) as caught:
            self.call(name, *arguments, **keywords)
        expected = f"StatusCode.{code}" if self.is_grpc else str(status)
        assert caught.value.status() == expected, caught.value
        return caught.value.message()


@pytest.fixture(params=MODULES)
def driver(request, server):
    return Driver(request.param, server)


def seen(answer):
    return json.loads(answer.as_numpy("seen").ravel()[0])


def test_every_option_at_once(driver):
    options = {
        "model_version": "",
        "outputs": [driver.output("seen"), driver.output("y")],
        "request_id": "request 7",
        "sequence_id": 42,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 3,
        "timeout": 10_000_000,
        "headers": {"x-told": "hello"},
        "parameters": {"text": "a", "whole": 7, "real": 1.5, "yes": True},
    }
    if driver.is_grpc:
        options |= {"client_timeout": 20.0, "compression_algorithm": "gzip"}
    else:
        options |= {
            "query_params": {"a": "b", "c": 1},
            "request_compression_algorithm": "gzip",
            "response_compression_algorithm": "deflate",
        }
    answer = driver.infer("witness", [driver.tensor(ROW)], **options)
    np.testing.assert_array_equal(answer.as_numpy("y"), ROW)
    told = seen(answer)
    assert told["id"] == "request 7"
    assert told["header"] == "hello"
    custom = {"text": "a", "whole": 7, "real": 1.5, "yes": True}
    assert custom.items() <= told["parameters"].items()
    assert told["parameters"]["sequence_id"] == 42
    assert told["parameters"]["sequence_start"] is True
    response = answer.get_response()
    if driver.is_grpc:
        assert response.id == "request 7"
        assert [output.name for output in response.outputs] == ["seen", "y"]
    else:
        assert response["id"] == "request 7"
        assert [output["name"] for output in response["outputs"]] == ["seen", "y"]


def test_versions(driver):
    for version, factor in (("1", 1), ("2", 2), ("", 2)):
        answer = driver.infer("versioned", [driver.tensor(ROW)], model_version=version)
        np.testing.assert_array_equal(answer.as_numpy("y"), ROW * factor)
    text = driver.refused(404, "NOT_FOUND", "infer", "versioned", [driver.tensor(ROW)], "9")
    assert "'9'" in text
    metadata = driver.call("get_model_metadata", "versioned")
    versions = metadata.versions if driver.is_grpc else metadata["versions"]
    assert list(versions) == ["1", "2"]


def test_classes_have_labels(driver):
    answer = driver.infer("witness", [driver.tensor(ROW)], outputs=[driver.output("y", classes=2)])
    found = answer.as_numpy("y").ravel().tolist()
    assert found == [b"4.000000:1:east", b"3.000000:2:south"]
    everything = driver.infer(
        "witness", [driver.tensor(ROW)], outputs=[driver.output("y", classes=99)]
    )
    assert everything.as_numpy("y").shape == (1, 4)


def test_a_deadline_ends_the_wait(driver):
    tensor = driver.tensor(ROW)
    driver.refused(504, "DEADLINE_EXCEEDED", "infer", "slow", [tensor], timeout=20_000)
    if driver.is_grpc:
        driver.refused(504, "DEADLINE_EXCEEDED", "infer", "slow", [tensor], client_timeout=0.05)
    answer = driver.infer("slow", [tensor], timeout=30_000_000)
    np.testing.assert_array_equal(answer.as_numpy("y"), ROW)


def test_description_statistics_and_repository(driver):
    assert driver.call("is_server_live")
    assert driver.call("is_server_ready")
    assert driver.call("is_model_ready", "witness")
    assert driver.call("is_model_ready", "versioned", "2")
    before = counted(driver)
    driver.infer("witness", [driver.tensor(ROW)])
    wait_until(lambda: counted(driver) > before)  # an answer is sent before it is counted
    assert counted(driver) == before + 1
    server = driver.call("get_server_metadata")
    config = driver.call("get_model_config", "batched")
    index = driver.call("get_model_repository_index")
    if driver.is_grpc:
        assert "statistics" in server.extensions
        assert config.config.max_batch_size == 4
        assert list(config.config.input[0].dims) == [4]
        names = [model.name for model in index.models]
    else:
        assert "statistics" in server["extensions"]
        assert config["max_batch_size"] == 4
        assert config["input"][0]["dims"] == [4]
        names = [model["name"] for model in index]
    assert {"witness", "versioned", "batched"} <= set(names)
    driver.call("unload_model", "echo_BOOL")
    yes = np.array([[True, False, True]])
    tensor = driver.tensor(yes, "BOOL")
    driver.refused(503, "UNAVAILABLE", "infer", "echo_BOOL", [tensor])
    driver.call("load_model", "echo_BOOL")
    np.testing.assert_array_equal(driver.infer("echo_BOOL", [tensor]).as_numpy("y"), yes)
    driver.refused(400, "INVALID_ARGUMENT", "load_model", "echo_BOOL", config="{}")
    driver.refused(404, "NOT_FOUND", "load_model", "nope")


def counted(driver):
    found = driver.call("get_inference_statistics", "witness")
    if driver.is_grpc:
        return found.model_stats[0].inference_stats.success.count
    return found["model_stats"][0]["inference_stats"]["success"]["count"]


def test_unsupported_calls_name_the_reason(driver):
    """UNIMPLEMENTED over gRPC; over REST the routes do not exist."""
    calls = {
        "get_system_shared_memory_status": (),
        "get_cuda_shared_memory_status": (),
        "register_cuda_shared_memory": ("r", b"aGFuZGxl", 0, 64),
        "unregister_cuda_shared_memory": (),
        "register_system_shared_memory": ("r", "key", 64),
        "unregister_system_shared_memory": (),
    }
    for name, arguments in calls.items():
        assert driver.refused(404, "UNIMPLEMENTED", name, *arguments), name


def test_log_and_trace_settings(driver):
    level = {"log_verbose_level": 1}
    try:
        changed = driver.call("update_log_settings", level)
        assert changed == driver.call("get_log_settings") or driver.is_grpc
        shown = driver.call("get_trace_settings")
        found = shown.settings["trace_level"].value if driver.is_grpc else shown["trace_level"]
        assert list(found) == ["OFF"]
        of_model = driver.call("get_trace_settings", "witness")
        assert str(of_model) == str(shown)
        change = {"trace_rate": "2"}  # nothing is traced here, and a call cannot begin it
        assert driver.refused(400, "INVALID_ARGUMENT", "update_trace_settings", "witness", change)
    finally:
        driver.call("update_log_settings", {"log_verbose_level": 0})


def test_a_stream_answers_in_order_and_survives_mistakes(server):
    answers = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        good = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
        good.set_data_from_numpy(ROW)
        bad = tritonclient.grpc.InferInput("x", [1, 3], "FP32")
        bad.set_data_from_numpy(ROW[:, :3])
        models = ("slow", "witness", "nope", "witness", "witness")
        for number, (model, tensor) in enumerate(
            zip(models, (good, bad, good, good, good), strict=True)
        ):
            client.async_stream_infer(
                model,
                [tensor],
                request_id=str(number),
                enable_empty_final_response=number == 4,
                parameters={"n": number},
            )
        client.stop_stream()
    assert len(answers) == 5
    assert [error is None for _, error in answers] == [True, False, False, True, True]
    assert "[1, 3]" in str(answers[1][1])
    assert "'nope'" in str(answers[2][1])
    ids = [result.get_response().id for result, error in answers if error is None]
    assert ids == ["0", "3", "4"]
    final = answers[4][0].get_response().parameters["triton_final_response"]
    assert final.bool_param is True
    assert seen(answers[3][0])["parameters"]["n"] == 3


def test_an_asynchronous_stream(server):
    async def converse():
        module = tritonclient.grpc.aio
        async with module.InferenceServerClient(server.grpc) as client:
            tensor = module.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(ROW)

            async def requests():
                for number in range(3):
                    yield {"model_name": "witness", "inputs": [tensor], "request_id": str(number)}

            stream = client.stream_infer(requests(), compression_algorithm="gzip")
            return [result.get_response().id async for result, error in stream if error is None]

    assert asyncio.run(converse()) == ["0", "1", "2"]
