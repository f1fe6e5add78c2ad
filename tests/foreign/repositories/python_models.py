"""The suites of Triton's own quality assurance for the Python backend, with the models as they are."""

from functools import partial
from pathlib import Path

from tests.foreign.cases import Case, Places, Serving
from tests.foreign.made.archives import TORCHVISION, cached_weights
from tests.foreign.made.python_models import FORWARDED, METRICS_PORT, PythonModel, lay_out

M = PythonModel


def serving(name: str, *models: PythonModel, metrics_port: int = 0, **settings: object) -> Serving:
    """Return a server of models at the ports that the suites have in their code."""
    return Serving(
        name,
        partial(_models, models),
        {"ready_when": "any", **settings},
        ports=(8000, 8001),
        environment={
            "BLS_KIND": "non_decoupled",
            "TRITON_DIR": "{here}",
            "MY_ENV": "MY_ENV",
            "MODEL_LOG_DIR": "{here}",
        },
        start_timeout=300.0,
        metrics_port=metrics_port,
    )


def _models(models: tuple[PythonModel, ...], places: Places, folder: Path) -> list[Path]:
    return lay_out(models, places, folder)


def _with_weights(models: tuple[PythonModel, ...], places: Places, folder: Path) -> list[Path]:
    cached_weights(folder / "torch")
    return lay_out(models, places, folder)


def suite(
    path: str, server: Serving, *models: str, only: str = "", without: str = "", **keys: object
) -> Case:
    """Return the case of a file of tests below qa/L0_backend_python."""
    folder, _, file = path.rpartition("/")
    chosen = (*(("-k", only) if only else ()), *(("--except", without) if without else ()))
    command = ("{python}", "{root}/unittest_program.py", file, *chosen)
    return Case(
        f"qa/L0_backend_python/{path}" + (f" {only.strip('*')}" if only else ""),
        command,
        server,
        copies=("qa/L0_backend_python", "qa/common"),
        folder=f"qa/L0_backend_python/{folder}" if folder else "qa/L0_backend_python",
        tests=True,
        environment={
            "PYTHONPATH": "{checkout}/qa/common:{root}/stand_ins",
            "SERVER_LOG": "{log}",
        },
        timeout=600.0,
        log=f"{folder}_server.log" if folder else "",
        models=models,
        **keys,  # type: ignore[arg-type]
    )


def in_model(model: str, server: Serving, **keys: object) -> Case:
    """Return the case of a model whose tests run in `execute`, and whose output says whether they passed."""
    return Case(
        f"test_infer_shm_leak.py {model}",
        ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_infer_shm_leak.py"),
        server,
        copies=("qa/L0_backend_python", "qa/common"),
        folder="qa/L0_backend_python",
        environment={"PYTHONPATH": "{checkout}/qa/common:{root}/stand_ins", "MODEL_NAME": model},
        timeout=600.0,
        models=(f"qa/{model}",),
        **keys,  # type: ignore[arg-type]
    )


def asked(source: str, server: Serving, *arguments: str, name: str = "", **keys: object) -> Case:
    """Return the case of a model without a suite, which is called once."""
    model = name or source.rpartition("/")[2]
    command = ("{python}", "{root}/python_model_program.py", "{http}", "{grpc}", model, *arguments)
    return Case(f"{source} one request", command, server, prints="PASS", models=(source,), **keys)  # type: ignore[arg-type]


DECOUPLED = "model_transaction_policy { decoupled: True }"
BATCHES = "dynamic_batching { max_queue_delay_microseconds: 500000 }"
EIGHT = (r"(?m)^max_batch_size:.*", "max_batch_size: 8")

LIFECYCLE = serving(
    "lifecycle",
    M("qa/error_code"),
    M("qa/execute_cancel"),
    M(
        "qa/execute_error",
        edits=(EIGHT,),
        appended="dynamic_batching { preferred_batch_size: [8], max_queue_delay_microseconds: 12000000 }",
    ),
    M(
        "qa/execute_grpc_error",
        edits=(EIGHT,),
        appended="dynamic_batching { preferred_batch_size: [8], max_queue_delay_microseconds: 1200000 }",
    ),
    M("qa/decoupled_grpc_error"),
    M("qa/execute_return_error"),
    M("qa/wrong_model", edits=(("TYPE_FP32", "TYPE_UINT32"),)),
    metrics_port=METRICS_PORT,
    metrics_compat=("triton",),
)
LOADS = serving(
    "loads",
    M("qa/init_error"),
    M("qa/init_exit"),
    M("qa/fini_error"),
    M("qa/auto_complete_error"),
    M("qa/bls_init_error"),
    M("qa/bls_finalize_error"),
    M("qa/bls_undefined"),
    M("qa/auto_complete"),
    M("qa/multi_file"),
    M("qa/python_version"),
)
PLAIN = serving(
    "plain",
    M(
        "qa/identity_fp32",
        "identity_uint8",
        edits=(("TYPE_FP32", "TYPE_UINT8"),),
        appended="dynamic_batching { preferred_batch_size: [8], max_queue_delay_microseconds: 12000000 }",
    ),
    M(
        "qa/identity_fp32",
        "identity_uint8_nobatch",
        edits=(("TYPE_FP32", "TYPE_UINT8"), ("(?m)^max_batch_size:.*", "max_batch_size: 0")),
    ),
    M("qa/identity_fp32", "identity_bool", edits=(("TYPE_FP32", "TYPE_BOOL"),)),
    M("qa/identity_bf16"),
    M("qa/pytorch_fp32_fp32"),
    M("qa/init_args"),
    M("qa/string"),
    M("qa/string_fixed"),
    M("qa/optional"),
    M("qa/non_contiguous"),
    M("qa/dlpack_identity"),
)
WEIGHTS = Serving(
    "weights",
    lambda places, folder: _with_weights((M("qa/torchvision/resnet50"),), places, folder),
    {"ready_when": "any"},
    ports=(8000, 8001),
    environment={"TORCH_HOME": "{here}/torch", **TORCHVISION},
    start_timeout=300.0,
)
MORE = serving(
    "more",
    M("qa/ground_truth"),
    M("qa/delayed_model"),
    M("qa/execute_delayed_model"),
    M("qa/join_add_sub"),
    M("qa/sub_add", config="../add_sub/config.pbtxt"),
    M("qa/string_identity"),
    M("qa/identity_fp32_timeout"),
    M("qa/model_env"),
    M("qa/sequence_int32", edits=(("KIND_GPU", "KIND_CPU"),)),
    M("qa/busy_op"),
    M("qa/model_init_del"),
    M("qa/generate_models/mock_llm"),
)
IO = serving(
    "io",
    M("qa/add_sub"),
    M("qa/dlpack_io_identity", "dlpack_io_identity_1"),
    M("qa/dlpack_io_identity", "dlpack_io_identity_2"),
    M("qa/dlpack_io_identity", "dlpack_io_identity_3"),
    M("qa/dlpack_io_identity_decoupled"),
    M("qa/ensemble_io"),
    M("qa/dlpack_add_sub"),
    M("qa/dlpack_sub_add"),
    M("tests/io/requested_output_model", "llm"),
)
ENSEMBLE = serving(
    "ensembles",
    M("qa/add_sub", "add_sub_1"),
    M("qa/add_sub", "add_sub_2"),
    M("qa/ensemble"),
    M("qa/identity_fp32"),
    M("qa/simple_identity_fp32"),
    M("qa/identity_fp32_logging"),
    M("qa/sequence_py"),
)
RESPONSES = serving(
    "responses",
    M("qa/response_sender"),
    M("qa/response_sender", "response_sender_decoupled", appended=DECOUPLED),
    M("qa/response_sender", "response_sender_async", file="model_async.py"),
    M(
        "qa/response_sender",
        "response_sender_decoupled_async",
        file="model_async.py",
        appended=DECOUPLED,
    ),
    M("qa/response_sender", "response_sender_batching", appended=BATCHES),
    M(
        "qa/response_sender",
        "response_sender_decoupled_batching",
        appended=f"{DECOUPLED}\n{BATCHES}",
    ),
    M(
        "qa/response_sender",
        "response_sender_async_batching",
        file="model_async.py",
        appended=BATCHES,
    ),
    M(
        "qa/response_sender",
        "response_sender_decoupled_async_batching",
        file="model_async.py",
        appended=f"{DECOUPLED}\n{BATCHES}",
    ),
    M("qa/response_sender_complete_final"),
    M("qa/response_sender_error"),
)
PARAMETERS = serving(
    "parameters",
    M("qa/response_parameters"),
    M("qa/response_parameters_decoupled"),
    M("qa/response_parameters_bls"),
    M("qa/bls_parameters"),
    M("qa/bls_request_rescheduling"),
    M("qa/request_rescheduling_addsub"),
    M("qa/iterative_sequence"),
    M("qa/wrong_return_type"),
    model_control="explicit",
    load_model=("*",),
)
STREAMS = serving(
    "streams",
    M("qa/identity_fp32"),
    M("qa/execute_cancel", appended=DECOUPLED),
    M("qa/response_sender_until_cancelled"),
    M("examples/decoupled", "square_int32", file="square_model.py", config="square_config.pbtxt"),
    M("qa/dlpack_add_sub"),
    M("qa/dlpack_square"),
    M("qa/async_execute_decouple"),
    M("qa/async_execute_decouple_bls"),
    *(
        M(f"tests/decoupled/models/decoupled_{name}")
        for name in (
            "bls",
            "bls_async_cancel",
            "bls_cancel",
            "bls_cancel_after_complete",
            "bls_stream",
            "execute_error",
            "raise_exception",
            "return_response_error",
            "send_after_close_error",
        )
    ),
)
CALLS = serving(
    "calls",
    M("qa/bls_memory"),
    M("qa/bls_memory_async"),
    M("qa/add_sub"),
    M("qa/execute_error"),
    M("qa/identity_fp32"),
    M("qa/dlpack_identity"),
    M("qa/dlpack_add_sub"),
    M("examples/decoupled", "square_int32", file="square_model.py", config="square_config.pbtxt"),
    M("qa/dlpack_square"),
    M("qa/identity_fp32_timeout"),
)

ON_CPU = "GPU_OUTPUT=[false, false, false]"
GIVEN_UP = (
    "a call that a model cancels ends at once; in Triton the called model may ignore it and go on"
)
CASES = (
    suite(
        "lifecycle/lifecycle_test.py",
        LIFECYCLE,
        "qa/wrong_model",
        only="*test_infer_pymodel_error",
        changed=FORWARDED,
    ),
    suite(
        "lifecycle/lifecycle_test.py",
        LIFECYCLE,
        "qa/error_code",
        "qa/execute_cancel",
        "qa/execute_error",
        "qa/execute_grpc_error",
        "qa/decoupled_grpc_error",
        "qa/execute_return_error",
        without="test_infer_pymodel_error",
    ),
    *(
        suite("python_test.py", PLAIN, f"qa/{model}", only=f"*.{test}")
        for test, model in (
            ("test_bf16", "identity_bf16"),
            ("test_bool", "identity_fp32"),
            ("test_infer_pytorch", "pytorch_fp32_fp32"),
            ("test_init_args", "init_args"),
            ("test_non_contiguous", "non_contiguous"),
            ("test_optional_input", "optional"),
            ("test_string", "string_fixed"),
            ("test_unicode", "string"),
        )
    ),
    asked("qa/init_args", PLAIN),
    asked("qa/dlpack_identity", PLAIN),
    *(
        asked(f"qa/{name}", MORE)
        for name in (
            "ground_truth",
            "delayed_model",
            "execute_delayed_model",
            "join_add_sub",
            "sub_add",
            "string_identity",
            "identity_fp32_timeout",
            "busy_op",
            "model_init_del",
        )
    ),
    asked("qa/generate_models/mock_llm", MORE),
    asked("qa/sequence_int32", MORE, "--sequence"),
    *(asked(f"qa/{name}", LOADS) for name in ("auto_complete",)),
    asked("qa/fini_error", LOADS, "--refuses", "name 'error' is not defined"),
    asked("qa/python_version", LOADS, "--refuses", "has no attribute 'as_numpy'"),
    asked("qa/init_error", LOADS, "--unready", "lorem_ipsum"),
    asked("qa/init_exit", LOADS, "--unready", "the process of model"),
    asked("qa/auto_complete_error", LOADS, "--unready", "undefined_variable"),
    asked("qa/bls_init_error", LOADS, "--unready", "BLS is only supported during the 'execute'"),
    asked("qa/bls_finalize_error", LOADS, "--refuses", "returned no response"),
    asked("qa/model_env", MORE, "--refuses", "returned no response"),
    asked("qa/multi_file", LOADS, "--refuses", "returned no response"),
    asked("qa/bls_undefined", LOADS, "--refuses", "undefined_variable"),
    suite("io/io_test.py", IO, "qa/add_sub", only="*.test_requested_output_default"),
    suite("io/io_test.py", IO, only="*.test_requested_output_decoupled_prior_crash"),
    asked("qa/dlpack_io_identity_decoupled", IO, ON_CPU),
    asked("qa/ensemble_io", IO, ON_CPU),
    asked("qa/dlpack_io_identity", IO, name="dlpack_io_identity_1"),
    asked("qa/dlpack_add_sub", IO),
    asked("qa/dlpack_sub_add", IO),
    suite(
        "ensemble/ensemble_test.py",
        ENSEMBLE,
        "qa/ensemble",
        failing={"EnsembleTest.test_ensemble_gpu": "asks for a model of NVIDIA's on a GPU"},
    ),
    suite("logging/logging_test.py", ENSEMBLE, "qa/identity_fp32_logging"),
    asked("qa/simple_identity_fp32", ENSEMBLE),
    asked("qa/identity_fp32", ENSEMBLE),
    asked("qa/sequence_py", ENSEMBLE, "--sequence"),
    suite("response_sender/response_sender_test.py", RESPONSES, "qa/response_sender"),
    suite(
        "response_sender/response_sender_complete_final_test.py",
        RESPONSES,
        "qa/response_sender_complete_final",
    ),
    asked("qa/response_sender_error", RESPONSES),
    suite(
        "parameters/response_parameters_test.py",
        PARAMETERS,
        "qa/response_parameters",
        "qa/response_parameters_decoupled",
        "qa/response_parameters_bls",
    ),
    suite("bls/bls_parameters_test.py", PARAMETERS, "qa/bls_parameters"),
    in_model("bls_request_rescheduling", PARAMETERS),
    suite(
        "request_rescheduling/grpc_endpoint_test.py",
        PARAMETERS,
        "qa/iterative_sequence",
        "qa/request_rescheduling_addsub",
        "qa/wrong_return_type",
    ),
    suite(
        "decoupled/decoupled_test.py",
        STREAMS,
        "qa/response_sender_until_cancelled",
        without="test_decoupled_bls",  # waits for ever without a GPU
        failing={"DecoupledTest.test_decoupled_bls_ignore_cancel": GIVEN_UP},
    ),
    *(
        suite("async_execute/concurrency_test.py", STREAMS, f"qa/{model}", only=f"*.{test}", **keys)
        for test, model, keys in (
            ("test_concurrent_execute_single_request", "async_execute_decouple", {}),
            ("test_concurrent_execute_multi_request", "async_execute_decouple", {}),
            ("test_concurrent_execute_different_duration", "async_execute_decouple", {}),
            ("test_model_raise_exception", "async_execute_decouple", {}),
            ("*_bls", "async_execute_decouple_bls", {}),
        )
    ),
    asked("qa/dlpack_square", STREAMS),
    asked("qa/torchvision/resnet50", WEIGHTS, changed="the weights are random"),
    in_model("bls_memory", CALLS),
    in_model("bls_memory_async", CALLS),
)

GPU = "needs a GPU"
BUSY = "compares gigabytes of numbers within the 240 s that its client waits, which a busy machine does not do"
MODELS_LEFT_OUT = {
    "qa/bls": "asks for tensors on a GPU in the same test program",
    "qa/bls_async": "asks for tensors on a GPU in the same test program",
    "qa/add_sub_gpu": GPU,
    "qa/cuda_memory_consumer": GPU,
    "qa/dlpack_empty_output": GPU,
    "qa/variable_gpu_output": GPU,
    "qa/dlpack_test": "needs cupy, and a GPU",
    "examples/preprocessing": "needs TensorRT",
    "qa/python_based_backends/add_sub_backend": "is a backend, which Triton loads for other models",
    "qa/bls_memory": BUSY,
    "qa/bls_memory_async": BUSY,
    "qa/bls_model_loading": "loads models in `initialize`, and brings their files along, which ksrv refuses",
    "qa/bls_onnx_warmup": "needs a model that NVIDIA generates",
    "qa/custom_metrics": "asks for Triton's metrics port, and compares the bounds of a histogram that it sets",
}
"""The models that no case asks, or not on every machine, and why; it does not stand of a model that has run."""
