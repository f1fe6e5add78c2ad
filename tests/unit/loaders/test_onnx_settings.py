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
from ksrv.testing import LoadFailed
from ksrv.testing import load as load_folder
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


@pytest.mark.parametrize("options", [{}, {CPU: {}}, {CPU: {"use_arena": False}}])
@pytest.mark.parametrize("providers", [(), (CPU,)])
def test_named_providers_run_the_model(load, providers, options):
    model = load(providers=providers, provider_options=options)
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
    found = load(session=options).session.get_session_options()
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
            {"providers": (CPU, "MIGraphXExecutionProvider")},
            "names 'MIGraphXExecutionProvider'",
        ),
        (
            {"provider_options": {"CUDAExecutionProvider": {"use_tf32": 1}}},
            f"names 'CUDAExecutionProvider'; the providers of the model are {CPU}",
        ),
        ({"session": {"no_such_option": 1}}, "names 'no_such_option'.*it has .*execution_mode"),
        ({"session": {"execution_mode": "fast"}}, "expected one of ORT_SEQUENTIAL, ORT_PARALLEL"),
        ({"session": {"intra_op_num_threads": "two"}}, "intra_op_num_threads cannot be 'two'"),
    ],
)
def test_unsupported_provider_is_refused(load, settings, said):
    with pytest.raises(ModelLoadError, match=said):
        load(**settings)


@pytest.mark.parametrize(
    ("text", "providers", "provider_options", "session"),
    [
        *(
            (
                f"optimization {{ graph {{ level: {level} }} }}",
                (),
                {},
                {"graph_optimization_level": name},
            )
            for level, name in LEVELS.items()
        ),
        ("optimization { graph { level: 0 } }", (), {}, {}),
        (
            "optimization { execution_accelerators { cpu_execution_accelerator [ { name: 'openvino' } ] } }",
            ("OpenVINOExecutionProvider",),
            {},
            {},
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator [ { name: 'tensorrt' "
            "parameters { key: 'precision_mode' value: 'FP16' } "
            "parameters { key: 'max_workspace_size_bytes' value: '1073741824' } "
            "parameters { key: 'trt_engine_cache_enable' value: '1' } } ] } }",
            (
                "TensorrtExecutionProvider",
                "CUDAExecutionProvider",
            ),
            {
                "TensorrtExecutionProvider": {
                    "trt_fp16_enable": "1",
                    "trt_max_workspace_size": "1073741824",
                    "trt_engine_cache_enable": "1",
                }
            },
            {},
        ),
        (
            "parameters { key: 'execution_mode' value { string_value: '1' } }"
            "parameters { key: 'inter_op_thread_count' value { string_value: '3' } }"
            "parameters { key: 'enable_mem_arena' value { string_value: 'false' } }",
            (),
            {},
            {
                "execution_mode": "ORT_PARALLEL",
                "inter_op_num_threads": 3,
                "enable_cpu_mem_arena": False,
            },
        ),
    ],
)
def test_keys_of_triton_become_providers_and_options(
    tmp_path, text, providers, provider_options, session
):
    folder = write_folder(tmp_path, "m", SCALE + text)
    write_scale(folder / "1/model.onnx", 2)
    entry = Repository([tmp_path], formats()).scan()["m"]
    assert entry.error is None
    found = entry.versions["1"].config.onnx
    assert found == OnnxSettings(
        providers=providers, provider_options=provider_options, session=session
    )
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
            "onnx: {providers: [CPUExecutionProvider], session: {execution_mode: ORT_PARALLEL}}",
            None,
        ),
        ("onnx: {provider: [CPUExecutionProvider]}", "onnx"),
        ("onnx: {providers: CPUExecutionProvider}", "onnx"),
        (
            "onnx: {providers: [{CPUExecutionProvider: {}}]}",
            "onnx.providers[0]: expected a text",
        ),
        (
            "onnx: {provider_options: [CPU]}",
            "onnx.provider_options: expected {NAME: {OPTION: VALUE}} for providers",
        ),
        ("onnx: {provider_options: {CPU: 1}}", "onnx.provider_options"),
        ("onnx: {session: {execution_mode: [1]}}", "onnx.session: expected names and values"),
        ("onnx: {options: {execution_mode: ORT_PARALLEL}}", "unknown key"),
        ("device: tensorrt:x", "expected auto, cpu, cuda, cuda:N, cuda:N,M, tensorrt, openvino"),
        ("device: openvino:1", "expected auto, cpu"),
        ("openvino: {NUM_STREAMS: 1}", "unknown key"),
        ("openvino: {properties: {NUM_STREAMS: [1]}}", "expected properties and their values"),
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
        "handler: other.py\nonnx: {session: {execution_mode: ORT_PARALLEL}}\n"
    )
    [source] = Repository([tmp_path], formats()).scan()["m"].versions.values()
    with pytest.raises(HandlerLoadError, match=r"is for a \.onnx file; name one under model:"):
        make_runner(source).load()


CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"


class Session:
    """A session of an ONNX Runtime that has every provider, but cannot start those in `broken`."""

    broken: tuple[str, ...] = ()
    made: list = []

    def __init__(self, path, options, providers):
        self._real = REAL_SESSION(path, options, [CPU])
        self.providers = dict(providers)
        self.made.append(self)

    def get_providers(self):
        return [name for name in self.providers if name not in self.broken]

    def __getattr__(self, name):
        return getattr(self._real, name)


REAL_SESSION = onnxruntime.InferenceSession


@pytest.fixture
def with_every_provider(monkeypatch):
    names = [TENSORRT, CUDA, "OpenVINOExecutionProvider", CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(Session, "made", [])


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cpu", {}, {CPU: {}}),
        ("cuda:1", {}, {CUDA: {"use_tf32": "0", "device_id": "1"}, CPU: {}}),
        (
            "cuda:0",
            {"provider_options": {CUDA: {"use_tf32": True, "gpu_mem_limit": 2048}}},
            {CUDA: {"use_tf32": "1", "device_id": "0", "gpu_mem_limit": "2048"}, CPU: {}},
        ),
        (
            "tensorrt:2",
            {},
            {
                TENSORRT: {
                    "device_id": "2",
                    "trt_engine_cache_enable": "1",
                    "trt_engine_cache_path": "FOLDER/.tensorrt",
                },
                CUDA: {"use_tf32": "0", "device_id": "2"},
                CPU: {},
            },
        ),
        (
            "cpu",
            {"providers": ("OpenVINOExecutionProvider", CPU)},
            {"OpenVINOExecutionProvider": {"device_type": "CPU", "precision": "FP32"}, CPU: {}},
        ),
    ],
)
def test_device_chooses_providers_that_keep_fp32(
    tmp_path, with_every_provider, device, settings, expected
):
    path = write_scale(tmp_path / "m.onnx", 2)
    onnx.load(LoadRequest(path, tmp_path, device=device, onnx=OnnxSettings(**settings)))
    [made] = Session.made
    shown = {
        name: {key: value.replace(str(tmp_path), "FOLDER") for key, value in options.items()}
        for name, options in made.providers.items()
    }
    assert shown == expected
    assert list(shown) == list(expected)


def test_provider_that_does_not_start_is_named(tmp_path, with_every_provider, monkeypatch):
    monkeypatch.setattr(Session, "broken", (TENSORRT,))
    path = write_scale(tmp_path / "m.onnx", 2)
    with pytest.raises(ModelLoadError, match=f"ONNX Runtime cannot start {TENSORRT}; install"):
        onnx.load(LoadRequest(path, tmp_path, device="tensorrt:0"))


def serve(tmp_path, settings, name="m.onnx"):
    write_scale(tmp_path / name, 2)
    (tmp_path / "model.yaml").write_text(f"model: {name}\n{settings}\n")
    return load_folder(tmp_path)


def test_device_openvino_runs_an_onnx_file(tmp_path):
    pytest.importorskip("openvino")
    settings = "device: openvino\nopenvino: {properties: {NUM_STREAMS: 1}}"
    with serve(tmp_path, settings) as model:
        assert [one.name for one in model.spec.outputs] == ["y"]
        assert model.infer({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2] * 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "device: openvino\nonnx: {session: {enable_mem_pattern: false}}",
            "another device: than openvino",
        ),
        ("device: openvino\nopenvino: {properties: {NO_SUCH: 1}}", "NO_SUCH"),
        (
            "openvino: {properties: {NUM_STREAMS: 1}}",
            "openvino: is for OpenVINO, which does not read",
        ),
        (
            "device: tensorrt",
            "cannot run on tensorrt:0: this ONNX Runtime offers .*set device: cpu",
        ),
    ],
)
def test_runtime_that_cannot_use_the_settings_refuses_them(tmp_path, settings, said):
    pytest.importorskip("openvino")
    with pytest.raises(LoadFailed, match=said):
        serve(tmp_path, settings).__enter__()


def test_device_of_onnx_files_is_refused_for_torch(tmp_path):
    torch = pytest.importorskip("torch")
    torch.jit.script(torch.nn.Identity()).save(tmp_path / "m.pt")
    (tmp_path / "model.yaml").write_text(
        "model: m.pt\ndevice: tensorrt\ninputs: [{name: x, datatype: FP32, shape: [-1]}]\n"
    )
    with pytest.raises(LoadFailed, match=r"device: tensorrt is for a \.onnx file"):
        load_folder(tmp_path).__enter__()
