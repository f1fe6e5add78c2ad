"""Suites of Triton's own quality assurance that speak to a server over HTTP and gRPC."""

from dataclasses import replace
from pathlib import Path

from onnx import TensorProto

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.models import port
from tests.foreign.made.onnx_models import add_sub, identity
from tests.foreign.repositories import python_models
from tests.foreign.repositories.client import eight_models, seven_models

TYPES = {
    "TYPE_FP32": TensorProto.FLOAT,
    "TYPE_FP16": TensorProto.FLOAT16,
    "TYPE_STRING": TensorProto.STRING,
    "TYPE_INT32": TensorProto.INT32,
    "TYPE_INT8": TensorProto.INT8,
}


def tensors(word: str, names: list[str], kind: str, dims: str) -> str:
    """Return the lines of a config.pbtxt for tensors of one type and shape."""
    return "".join(
        f'{word} [{{ name: "{name}" data_type: {kind} dims: [ {dims} ] }}]\n' for name in names
    )


def zero(
    folder: Path,
    name: str,
    kind: str,
    rank: int,
    count: int = 1,
    rows: int = 8,
    dims: str = "",
    more: str = "",
) -> None:
    """Write one of the identity models `onnx_zero_...` of L0_http."""
    shape = [f"size{axis}" for axis in range(rank + (rows > 0))]
    identity(folder / name / "1/model.onnx", [TYPES[kind]] * count, shape)
    free = dims or ", ".join(["-1"] * rank)
    text = f'platform: "onnxruntime_onnx"\nmax_batch_size: {rows}\n'
    text += tensors("input", [f"INPUT{index}" for index in range(count)], kind, free)
    text += tensors("output", [f"OUTPUT{index}" for index in range(count)], kind, free)
    (folder / name / "config.pbtxt").write_text(text + more)


QUEUE = """dynamic_batching {
  max_queue_delay_microseconds: 1000000
  preferred_batch_size: [ 8 ]
  default_queue_policy { max_queue_size: 1 }
}
"""


def http_models(places: Places, folder: Path) -> list[Path]:
    """Write what L0_http's test.sh copies from a repository that NVIDIA generates."""
    models = folder / "models"
    zero(models, "onnx_zero_1_float32", "TYPE_FP32", 1)
    zero(models, "onnx_zero_1_float32_queue", "TYPE_FP32", 1, more=QUEUE)
    zero(models, "onnx_zero_1_object", "TYPE_STRING", 1)
    zero(models, "onnx_zero_1_object_1_element", "TYPE_STRING", 1, dims="1")
    zero(models, "onnx_zero_1_float16", "TYPE_FP16", 2)
    zero(models, "onnx_zero_3_float32", "TYPE_FP32", 1, count=3)
    port("simple_identity", models)
    port("simple_identity_int64", models)
    return [models]


def batch_models(places: Places, folder: Path) -> list[Path]:
    """Write the two models of L0_client_nobatch."""
    models = folder / "models"
    for name, rows in (("onnx_int32_int8_int8", 8), ("onnx_nobatch_int32_int8_int8", 0)):
        shape = ["rows", 16] if rows else [16]
        add_sub(models / name / "1/model.onnx", TensorProto.INT32, TensorProto.INT8, shape)
        text = f'platform: "onnxruntime_onnx"\nmax_batch_size: {rows}\n'
        text += tensors("input", ["INPUT0", "INPUT1"], "TYPE_INT32", "16")
        text += tensors("output", ["OUTPUT0", "OUTPUT1"], "TYPE_INT8", "16")
        (models / name / "config.pbtxt").write_text(text)
    return [models]


def ports(*names: str) -> object:
    """Return what lays out Python models as handlers."""

    def lay_out(places: Places, folder: Path) -> list[Path]:
        for name in names:
            port(name, folder / "models")
        return [folder / "models"]

    return lay_out


def grpc_models(places: Places, folder: Path) -> list[Path]:
    """Lay out the models of L0_grpc's unit test."""
    models = seven_models(places, folder)[0]
    port("string_identity", models)
    return [models]


TRITON_PORTS = (8000, 8001)
SHARED = {
    "allow_shared_memory": True,
    "control_token_file": "{root}/stand_ins/control_token/tokens",
}
POLLED = {"model_control": "poll", **SHARED}
HTTP = Serving(
    "http", http_models, {"model_control": "explicit", "load_model": ["*"]}, TRITON_PORTS
)
SEVEN = Serving("seven", seven_models, POLLED, TRITON_PORTS)
EIGHT = Serving("eight", eight_models, POLLED, TRITON_PORTS)
UNSHARED = Serving("unshared", seven_models, {}, TRITON_PORTS)
SHARING = Serving("sharing", seven_models, SHARED, TRITON_PORTS)
BATCHES = Serving("batches", batch_models, {}, TRITON_PORTS)
GENERATE = Serving("generate", ports("mock_llm"), {}, TRITON_PORTS)  # type: ignore[arg-type]
PLUGIN = Serving("plugin", ports("client_plugin_test"), {}, TRITON_PORTS)  # type: ignore[arg-type]
GRPC = Serving("grpc", grpc_models, {}, TRITON_PORTS)

MADE = "the models that NVIDIA's generator writes are made here, and Python models are handlers"
WORDING = "refused as it should be, with another text than Triton's"
STATUS = "refused as it should be, with another status than Triton's (400 for a client's mistake, 403 for what is switched off)"
NAMED = "it asserts that the server's name is `triton`; ksrv's is `ksrv`"
FILES = "loads that bring the files of a model are refused (docs/migration/triton.md), with 400 where Triton has 500"
RESTRICTED = "`--http-restricted-api` gives routes a separate key; ksrv has tokens for callers (docs/security.md)"


def suite(
    path: str, serving: Serving, *, only: str = "", except_for: str = "", **keys: object
) -> Case:
    """Return the case of a file of tests, run in a copy because its tests write files."""
    folder, _, file = path.partition("/")
    command = ("{python}", "{root}/unittest_program.py", file, *(("-k", only) if only else ()))
    if except_for:
        command += ("--except", except_for)
    return Case(
        f"qa/{path}",
        command,
        serving,
        copies=(f"qa/{folder}", "qa/common"),
        folder=f"qa/{folder}",
        tests=True,
        **{"changed": MADE, **keys},  # type: ignore[arg-type]
    )


REGIONS = (
    "test_invalid_create_shm",
    "test_valid_create_set_register",
    "test_unregister_before_register",
    "test_unregister_after_register",
    "test_reregister_after_register",
    "test_unregister_after_inference",
    "test_register_after_inference",
    "test_too_big_shm",
    "test_mixed_raw_shm",
    "test_unregisterall",
    "test_infer_offset_out_of_bound",
    "test_infer_byte_size_out_of_bound",
    "test_infer_integer_overflow",
    "test_register_out_of_bound",
    "test_register_reserved_names",
    "test_register_invalid_shm_key",
    "test_python_client_leak",
)


OTHER_GRPC_WORDS = (
    "test_infer_offset_out_of_bound",
    "test_register_invalid_shm_key",
    "test_register_out_of_bound",
    "test_register_reserved_names",
    "test_reregister_after_register",
    "test_too_big_shm",
)
OTHER_WORDS = {"http": ("test_infer_integer_overflow", *OTHER_GRPC_WORDS), "grpc": OTHER_GRPC_WORDS}


def regions(test: str, protocol: str, serving: Serving = SHARING) -> Case:
    """Return the case of one test of shared memory, which asks a server that nobody asked before."""
    case = suite(
        "L0_shared_memory/shared_memory_test.py",
        serving,
        only=f"*SharedMemoryTest.{test}",
        environment={"CLIENT_TYPE": protocol},
        fresh=True,
        changed="",
        failing={
            "SharedMemoryTest.test_client_shm_disabled_by_default": "if shared memory is off, its routes and calls do not exist, status included",
            **dict.fromkeys(
                (f"SharedMemoryTest.{test}" for test in OTHER_WORDS[protocol]), WORDING
            ),
        },
    )
    return replace(case, name=f"{case.name} {protocol}")


REPOSITORY = Repository(
    "triton-inference-server/server",
    "server",
    (
        suite(
            "L0_http/http_test.py",
            HTTP,
            except_for="test_loading_large_invalid_model",
            failing={
                "HttpTest.test_byte_too_many_elements": "a raw request whose only input is BYTES [-1] is one element here, and refused by Triton",
                "HttpTest.test_content_encoding_chunked_manually": "it sends Content-Length and Transfer-Encoding together, which ksrv refuses (RFC 9112, 6.1: request smuggling)",
                "HttpTest.test_load_oversized_file_parameter": FILES,
                "HttpTest.test_negative_dimensions": STATUS,
                "HttpTest.test_repository_index_deeply_nested_json": STATUS,
                **dict.fromkeys(
                    (
                        "HttpTest.test_buffer_size_overflow",
                        "HttpTest.test_duplicate_output_names",
                        "HttpTest.test_json_recursion_depth_limit",
                        "HttpTest.test_multi_inputs",
                        "HttpTest.test_multi_variable_dimensions",
                    ),
                    WORDING,
                ),
            },
        ),
        suite(
            "L0_http/python_http_aio_test.py",
            SEVEN,
            changed="",
            failing={
                "TestHttpAioClient.test_get_server_metadata": NAMED,
                "TestHttpAioClient.test_load_model": STATUS,
                "TestHttpAioClient.test_unload_model": STATUS,
            },
        ),
        suite("L0_http/http_client_plugin_test.py", HTTP),
        suite(
            "L0_http/generate_endpoint_test.py",
            GENERATE,
            timeout=180.0,
            failing={
                **dict.fromkeys(
                    (
                        "GenerateEndpointTest.test_complex_schema",
                        "GenerateEndpointTest.test_invalid_input_types",
                        "GenerateEndpointTest.test_json_dtype_size_expansion_exceeds_limit_error",
                        "GenerateEndpointTest.test_missing_inputs",
                        "GenerateEndpointTest.test_parameters",
                        "GenerateEndpointTest.test_zero_response",
                    ),
                    WORDING,
                ),
                "GenerateEndpointTest.test_duplicate_inputs": "if a key is twice in the JSON, the last value counts; Triton refuses it",
                "GenerateEndpointTest.test_generate_stream_response_error": "a failure before the first event is JSON with its status here, an event with an error status in Triton",
            },
        ),
        suite(
            "L0_http/http_request_many_chunks.py",
            UNSHARED,
            except_for="test_chunked_infer_over_max_chunks_reject_with_bounded_rss_growth",
            changed="",
            failing={"HTTPRequestManyChunksTest.*": WORDING},
        ),
        suite(
            "L0_grpc/python_grpc_aio_test.py",
            EIGHT,
            changed="",
            failing={
                "TestGrpcAioClient.test_get_server_metadata": NAMED,
                "TestGrpcAioClient.test_register_cuda_shared_memory": WORDING,
                **dict.fromkeys(
                    (
                        "TestGrpcAioClient.test_load_model",
                        "TestGrpcAioClient.test_unload_model",
                        "TestGrpcAioClient.test_register_system_shared_memory",
                    ),
                    STATUS,
                ),
            },
        ),
        suite("L0_grpc/grpc_client_plugin_test.py", PLUGIN),
        suite(
            "L0_grpc/python_unit_test.py",
            GRPC,
            only="*GrpcTest.*",
            timeout=180.0,
            failing={"GrpcTest.test_duplicate_output_names_rejected": WORDING},
        ),
        suite("L0_client_nobatch/client_test.py", BATCHES),
        *(
            regions("test_client_shm_disabled_by_default", protocol, UNSHARED)
            for protocol in ("http", "grpc")
        ),
        *(regions(test, protocol) for test in REGIONS for protocol in ("http", "grpc")),
        *python_models.CASES,
    ),
    {
        "`qa/L0_http/http_restricted_api_test.py`, `RestrictedProtocolTest` of `qa/L0_grpc/python_unit_test.py`": RESTRICTED,
        "`qa/L0_http/http_basic_auth_test.py`, `qa/L0_grpc/grpc_basic_auth_test.py`": "need nginx in front",
        "`test_loading_large_invalid_model`, `qa/L0_http/http_input_size_limit_test.py`": "bodies of 2 GiB and the process id of tritonserver",
        "other `qa/L0_*`": "need tritonserver's options, backends, C API or a GPU",
    },
)
