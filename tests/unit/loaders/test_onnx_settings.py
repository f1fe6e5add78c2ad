"""`onnx:` of model.yaml, and the keys of config.pbtxt that mean the same: providers and options of ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest

from ksrv.dialects.registry import formats
from ksrv.handlers.runner import HandlerLoadError, make_runner
from ksrv.loaders import onnx
from ksrv.loaders.loaded import LoadRequest, ModelLoadError
from ksrv.model.config import OnnxSettings
from ksrv.repository.layout import Repository
from tests.support.model_files.onnx_models import write_scale
from tests.support.model_files.triton_repository import write_folder

CPU = "CPUExecutionProvider"
SCALE = """
platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}


@pytest.fixture
def load(tmp_path):
    """Load a model that doubles its input, with these settings."""
    write_scale(tmp_path / "model.onnx", 2)

    def load_with(**settings):
        settings = OnnxSettings(**settings)
        return onnx.load(LoadRequest(tmp_path / "model.onnx", tmp_path, onnx=settings)).model

    return load_with


@pytest.mark.parametrize("providers", [(CPU,), ({CPU: {}},), ({CPU: {"use_arena": False}},)])
def test_the_named_providers_run_the_model(load, providers):
    model = load(providers=providers)
    assert model.session.get_providers() == [CPU]
    assert model.run({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2] * 4]


def test_options_reach_the_session(load):
    options = {
        "graph_optimization_level": "ORT_ENABLE_BASIC",
        "execution_mode": "ORT_PARALLEL",
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 2,
        "enable_mem_pattern": False,
        "session.intra_op.allow_spinning": 0,
    }
    found = load(options=options).session.get_session_options()
    assert found.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert found.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (found.intra_op_num_threads, found.inter_op_num_threads) == (1, 2)
    assert not found.enable_mem_pattern
    assert found.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"providers": ("NoSuchProvider",)}, f"names 'NoSuchProvider'.*it has .*{CPU}"),
        (
            {"providers": (CPU, {"MIGraphXExecutionProvider": {}})},
            "names 'MIGraphXExecutionProvider'",
        ),
        ({"options": {"no_such_option": 1}}, "names 'no_such_option'.*it has .*execution_mode"),
        ({"options": {"execution_mode": "fast"}}, "expected one of ORT_SEQUENTIAL, ORT_PARALLEL"),
        ({"options": {"intra_op_num_threads": "two"}}, "intra_op_num_threads cannot be 'two'"),
    ],
)
def test_unsupported_provider_is_refused(load, settings, said):
    with pytest.raises(ModelLoadError, match=said):
        load(**settings)


@pytest.mark.parametrize(
    ("text", "providers", "options"),
    [
        *(
            (
                f"optimization {{ graph {{ level: {level} }} }}",
                (),
                {"graph_optimization_level": name},
            )
            for level, name in LEVELS.items()
        ),
        ("optimization { graph { level: 0 } }", (), {}),
        (
            "optimization { execution_accelerators { cpu_execution_accelerator [ { name: 'openvino' } ] } }",
            ({"OpenVINOExecutionProvider": {}},),
            {},
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator [ { name: 'tensorrt' "
            "parameters { key: 'precision_mode' value: 'FP16' } "
            "parameters { key: 'max_workspace_size_bytes' value: '1073741824' } "
            "parameters { key: 'trt_engine_cache_enable' value: '1' } } ] } }",
            (
                {
                    "TensorrtExecutionProvider": {
                        "trt_fp16_enable": "1",
                        "trt_max_workspace_size": "1073741824",
                        "trt_engine_cache_enable": "1",
                    }
                },
                {"CUDAExecutionProvider": {}},
            ),
            {},
        ),
        (
            "parameters { key: 'execution_mode' value { string_value: '1' } }"
            "parameters { key: 'inter_op_thread_count' value { string_value: '3' } }"
            "parameters { key: 'enable_mem_arena' value { string_value: 'false' } }",
            (),
            {
                "execution_mode": "ORT_PARALLEL",
                "inter_op_num_threads": 3,
                "enable_cpu_mem_arena": False,
            },
        ),
    ],
)
def test_the_keys_of_triton_become_providers_and_options(tmp_path, text, providers, options):
    folder = write_folder(tmp_path, "m", SCALE + text)
    write_scale(folder / "1/model.onnx", 2)
    entry = Repository([tmp_path], formats()).scan()["m"]
    assert entry.error is None
    found = entry.versions["1"].config.onnx
    assert (found.providers, found.options) == (providers, options)
    assert not entry.report.ignored


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "optimization { execution_accelerators { gpu_execution_accelerator [ { name: 'dla' } ] } }",
            "expected one of tensorrt, cuda, found 'dla'",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator [ { name: 'tensorrt' "
            "parameters { key: 'precision_mode' value: 'FP4' } } ] } }",
            "precision_mode: expected one of FP32, FP16, BF16, INT8, found 'FP4'",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator [ { name: 'tensorrt' "
            "parameters { key: 'trt_extra_plugin_lib_paths' value: '/x.so' } } ] } }",
            "libraries of custom operators are not loaded",
        ),
        (
            "parameters { key: 'execution_mode' value { string_value: '2' } }",
            "expected 0 or 1, found '2'",
        ),
        (
            "parameters { key: 'inter_op_thread_count' value { string_value: 'x' } }",
            "expected a whole number",
        ),
    ],
)
def test_wrong_values_of_triton_are_refused(tmp_path, text, said):
    write_scale(write_folder(tmp_path, "m", SCALE + text) / "1/model.onnx", 2)
    assert said in Repository([tmp_path], formats()).scan()["m"].error


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            "onnx: {providers: [CPUExecutionProvider], options: {execution_mode: ORT_PARALLEL}}",
            None,
        ),
        ("onnx: {provider: [CPUExecutionProvider]}", "onnx"),
        ("onnx: {providers: CPUExecutionProvider}", "onnx"),
    ],
)
def test_the_section_of_model_yaml_is_checked(tmp_path, keys, said):
    (tmp_path / "m").mkdir()
    write_scale(tmp_path / "m/model.onnx", 2)
    (tmp_path / "m/model.yaml").write_text(f"model: model.onnx\n{keys}\n")
    entry = Repository([tmp_path], formats()).scan()["m"]
    assert entry.error is None if said is None else said in str(entry.error)


def test_the_section_is_refused_for_other_files(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/other.py").write_text(
        "from ksrv import BaseHandler\nclass Other(BaseHandler):\n    def inference(self, x):\n        return x\n"
    )
    (tmp_path / "m/model.yaml").write_text(
        "handler: other.py\nonnx: {options: {execution_mode: ORT_PARALLEL}}\n"
    )
    [source] = Repository([tmp_path], formats()).scan()["m"].versions.values()
    with pytest.raises(HandlerLoadError, match=r"is for a \.onnx file; name one under model:"):
        make_runner(source).load()
