"""One model in every format gives equal answers, and a file of the wrong format gets a clear error."""

import importlib
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from ksrv.errors import InferenceError
from ksrv.handlers.runner import HandlerLoadError
from ksrv.loaders import package as packages
from ksrv.loaders.loaded import ModelLoadError
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.model_files.format_files import (
    LAYERS,
    NET,
    compiled_package,
    exported,
    network,
    state_of,
    write_onnx,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(900)  # some tests compile the network

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference():
    """The network itself, with seeded weights, and its answer to one input."""
    net = network()
    array = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    with torch.inference_mode():
        return net, array, net(torch.from_numpy(array)).numpy()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "layers.py").write_text(LAYERS)
    return tmp_path


@pytest.fixture
def serve(folder, loaded):
    """Answer arrays with a model of the folder: its declaration, and the outputs by their names."""

    def answer(config, array=None, **arrays):
        (folder / "model.yaml").write_text(textwrap.dedent(config))
        runner = loaded(folder, "net")
        arrays = arrays or {"x": array}
        tensors = {name: Tensor(name, "FP32", one.shape, one) for name, one in arrays.items()}
        rows = len(next(iter(arrays.values())))
        found = runner.run(ExecutorInputs(tensors, rows, [RequestPart(slice(0, rows))])).tensors
        return runner.spec, {one.name: one.data.tolist() for one in found}

    return answer


def check(serve, config, reference, platform):
    _, array, want = reference
    spec, outputs = serve(config, array)
    assert spec.platform == platform
    [got] = outputs.values()
    np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0)
    return spec


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.safetensors"])
def test_class_and_state(folder, serve, reference, name):
    state = state_of(reference[0])
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(state, folder / name)
    else:
        torch.save(state, folder / name)
    check(serve, f"model: {name}\nclass: net.py:Net", reference, "pytorch_eager")


def test_onnx(folder, serve, reference):
    write_onnx(reference[0], folder / "net.onnx")
    spec = check(serve, "model: net.onnx", reference, "onnxruntime_onnx")
    assert [(one.name, one.datatype, one.shape) for one in spec.outputs] == [("y", "FP32", (-1, 3))]


def test_exported_program(folder, serve, reference):
    torch.export.save(exported(reference[0]), folder / "net.pt2")
    spec = check(serve, "model: net.pt2", reference, "pytorch_export")
    assert [(one.datatype, one.shape) for one in spec.inputs] == [("FP32", (-1, 4))]
    assert [(one.datatype, one.shape) for one in spec.outputs] == [("FP32", (-1, 3))]


def test_a_compiled_package_is_loaded_without_the_compiler(tmp_path):
    """torch's loader imports inductor, and compiles programs to detect the CPU, which takes seconds."""
    (tmp_path / "net.pt2").write_bytes(compiled_package().read_bytes())
    program = f"""
        import sys, torch
        from pathlib import Path
        from ksrv.loaders import package
        from ksrv.loaders.loaded import LoadRequest
        request = LoadRequest(Path({str(tmp_path / "net.pt2")!r}), Path({str(tmp_path)!r}))
        model = package.load(request)
        print(model.model(torch.zeros(2, 4)).shape, "torch._inductor.compile_fx" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split("\n")[0] == "torch.Size([2, 3]) False", done.stderr


@pytest.mark.parametrize(
    ("needed", "flags", "missing"),
    [
        ("AVX512", {"sse2", "avx2"}, "AVX512"),
        ("AVX512 AMX_TILE", {"avx2", "avx512f"}, ""),
        ("AVX2", {"sse2"}, "AVX2"),
        ("AVX2", {"avx2"}, ""),
        ("AVX2", set(), ""),  # the system does not say
        ("INVALID_VEC_ISA", {"sse2"}, ""),
        ("NEON", {"sse2"}, ""),
        ("", {"sse2"}, ""),
    ],
)
def test_a_package_for_another_cpu_is_refused(monkeypatch, needed, flags, missing):
    """Its instructions would crash the process."""
    monkeypatch.setattr(packages, "_processor_flags", lambda: frozenset(flags))
    if not missing:
        packages._check_instructions(Path("net.pt2"), needed)
        return
    with pytest.raises(ModelLoadError, match=f"compiled for a CPU with {missing}, which this"):
        packages._check_instructions(Path("net.pt2"), needed)


def test_a_plain_function_needs_no_file(folder, serve, reference):
    (folder / "handler.py").write_text("def inference(x):\n    return x + 1\n")
    spec, got = serve("handler: handler.py:inference", reference[1])
    assert spec.platform == "python"
    np.testing.assert_array_equal(got["output"], reference[1] + 1)


def test_a_fresh_class_needs_no_file(serve, reference):
    spec, got = serve("class: net.py:Net", reference[1])
    assert spec.platform == "pytorch_eager"
    assert np.shape(got["output"]) == (5, 3)


def test_a_pickle_is_refused_and_its_code_does_not_run(folder, serve, reference):
    class Trap:
        def __reduce__(self):
            return (open, (str(folder / "ran"), "w"))

    with (folder / "weights.pth").open("wb") as file:
        torch.save({"first.weight": Trap()}, file)
    (folder / "plain.pth").write_bytes(pickle.dumps(Trap()))
    (folder / "ran").unlink(missing_ok=True)
    for name in ("weights.pth", "plain.pth"):
        with pytest.raises(HandlerLoadError, match=name):
            serve(f"model: {name}\nclass: net.py:Net", reference[1])
    assert not (folder / "ran").exists()


def test_state_dict_without_a_class_is_not_taken_for_torchscript(folder, serve, reference):
    torch.save(state_of(reference[0]), folder / "weights.pt")
    with pytest.raises(
        HandlerLoadError,
        match=r"weights.pt holds weights only \(a state_dict\).* add class: net.py:Net",
    ):
        serve("model: weights.pt", reference[1])


def test_error_names_the_files_real_format(folder, serve, reference):
    net, array, _ = reference
    torch.save(net, folder / "whole.pt")
    torch.save(net, folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.save([1], folder / "list.pt")
    torch.jit.save(torch.jit.trace(net, torch.zeros(1, 4)), folder / "script.pt")
    torch.export.save(exported(net), folder / "program.pt2")
    (folder / "program.pt2").rename(folder / "program.pt")
    (folder / "cut.pt").write_bytes((folder / "script.pt").read_bytes()[:-300])
    (folder / "empty.pt").touch()
    for name, words in {
        "whole.pt": "whole.pt holds pickled objects, which ksrv never loads.*save the module's state_dict",
        "old.pt": "old.pt holds pickled objects, which ksrv never loads",
        "list.pt": "list.pt holds list, and no TorchScript",
        "cut.pt": "cut.pt is cut off or damaged",
        "empty.pt": "empty.pt is empty",
        "program.pt": r"program.pt is a program of torch.export; call it .pt2",
    }.items():
        with pytest.raises(HandlerLoadError, match=words) as caught:
            serve(f"model: {name}", array)
        assert "miniz" not in str(caught.value)
    for name, words in {
        "cut.pt": "cut.pt is cut off or damaged",
        "script.pt": "script.pt is TorchScript, which contains its code; take class: out",
    }.items():
        with pytest.raises(HandlerLoadError, match=words):
            serve(f"model: {name}\nclass: net.py:Net", array)


OPERATORS = """
import torch

library = torch.library.Library("ksrv_test_operators", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
"""

CALLER = """
import sys

import ksrv_test_operators
import torch


class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.ops.ksrv_test_operators.twice(x)


torch.jit.save(torch.jit.script(Twice()), sys.argv[1])
"""


def test_torchscript_that_calls_the_operators_of_a_package(folder, serve, reference, monkeypatch):
    array = reference[1]
    site = folder / "site"
    site.mkdir()
    (site / "ksrv_test_operators.py").write_text(OPERATORS)
    (folder / "caller.py").write_text(CALLER)
    command = [sys.executable, folder / "caller.py", folder / "twice.pt"]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}, check=True, timeout=300)
    missing = r"twice.pt needs the operators of ksrv_test_operators \(ksrv_test_operators::twice\): pip install"
    with pytest.raises(HandlerLoadError, match=missing):
        serve("model: twice.pt", array)
    (site / "ksrv_test_operators.py").rename(site / "kept")
    (site / "ksrv_test_operators.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(
        HandlerLoadError, match="which the installed ksrv_test_operators does not have"
    ):
        serve("model: twice.pt", array)
    del sys.modules["ksrv_test_operators"]
    (site / "kept").replace(site / "ksrv_test_operators.py")
    importlib.invalidate_caches()
    assert np.array_equal(serve("model: twice.pt", array)[1]["output"], array * 2)


@pytest.mark.parametrize("name", ["net.pt", "net.pt2", "net.so", "net.onnx", "empty.onnx"])
def test_junk_is_refused_with_the_file_name(folder, serve, reference, name):
    (folder / name).write_bytes(b"" if name == "empty.onnx" else b"this is not a model\n" * 9)
    with pytest.raises(HandlerLoadError, match=name):
        serve(f"model: {name}", reference[1])


def test_a_missing_extra_is_named(folder, serve, reference, monkeypatch):
    import sys

    write_onnx(reference[0], folder / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(HandlerLoadError, match=r"pip install onnxruntime"):
        serve("model: net.onnx\ndevice: cpu", reference[1])


def package(module, example, path, **options):
    torch.export.save(torch.export.export(module, *example, **options), path)


class Pair(torch.nn.Module):
    def forward(self, left, right):
        return left - right, (left * right).sum(dim=1)


class Named(torch.nn.Module):
    def forward(self, left, right):
        return {"difference": left - right, "left": left.long()}


FIVES, ONES = np.full((2, 3), 5, np.float32), np.ones((2, 3), np.float32)
ROWS = {0: torch.export.Dim.AUTO}


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
def test_an_exported_program_takes_its_own_names_in_any_order(folder, serve, order):
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    package(Pair(), (example,), folder / "p.pt2", dynamic_shapes=(ROWS, ROWS))
    arrays = {"left": FIVES, "right": ONES}
    spec, got = serve("model: p.pt2", **{name: arrays[name] for name in order})
    assert [one.name for one in spec.inputs] == ["left", "right"]
    assert [one.name for one in spec.outputs] == ["output_0", "output_1"]
    assert got == {"output_0": [[4] * 3] * 2, "output_1": [15, 15]}


def test_an_exported_program_takes_declared_names_in_their_order(folder, serve):
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    package(Pair(), (example,), folder / "p.pt2", dynamic_shapes=(ROWS, ROWS))
    config = """
        model: p.pt2
        inputs:
          - {name: input-1, datatype: FP32, shape: [-1, 3]}
          - {name: input-2, datatype: FP32, shape: [-1, 3]}
    """
    _, got = serve(config, **{"input-2": ONES, "input-1": FIVES})
    assert got["output_0"] == [[4] * 3] * 2


def test_an_exported_program_with_keywords_and_named_results(folder, serve):
    example = ((torch.zeros(2, 3),), {"right": torch.zeros(2, 3)})
    package(Named(), example, folder / "p.pt2", dynamic_shapes={"left": ROWS, "right": ROWS})
    spec, got = serve("model: p.pt2", right=ONES, left=FIVES)
    assert [(one.name, one.datatype) for one in spec.outputs] == [
        ("difference", "FP32"),
        ("left", "INT64"),
    ]
    assert got == {"difference": [[4] * 3] * 2, "left": [[5] * 3] * 2}


def test_an_eager_module_takes_declared_names_by_position(folder, serve):
    (folder / "pair.py").write_text(
        "import torch\nclass Pair(torch.nn.Module):\n"
        "    def forward(self, a, b):\n        return a - b\n"
    )
    config = """
        class: pair.py:Pair
        inputs:
          - {name: left, datatype: FP32, shape: [-1, 3]}
          - {name: right, datatype: FP32, shape: [-1, 3]}
    """
    _, got = serve(config, right=ONES, left=FIVES)
    assert got == {"output": [[4] * 3] * 2}


def test_rows_beyond_the_exported_range_are_a_client_error(folder, serve, reference):
    torch.export.save(exported(reference[0]), folder / "net.pt2")
    with pytest.raises(
        InferenceError, match="65 rows; the model was exported for 1 to 64"
    ) as caught:
        serve("model: net.pt2", np.zeros((65, 4), np.float32))
    assert caught.value.http_status == 400


def test_a_package_of_something_else_is_refused(folder, serve, reference):
    import zipfile

    with zipfile.ZipFile(folder / "net.pt2", "w") as archive:
        archive.writestr("net/data.txt", "x")
    with pytest.raises(
        HandlerLoadError, match=r"not a file of torch\.export: it holds neither a program nor"
    ):
        serve("model: net.pt2", reference[1])
    with zipfile.ZipFile(folder / "net.pt2", "w") as archive:
        archive.writestr("net/models/model.json", "{}")
    with pytest.raises(HandlerLoadError, match=r"net\.pt2 cannot be loaded"):
        serve("model: net.pt2", reference[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"state_dict": {}}, "checkpoint; save its entry 'state_dict'"),
        ([1, 2], "holds a list"),
        (b"junk", "not a file of weights"),
    ],
)
def test_files_without_a_state_dict_are_refused(folder, serve, reference, content, words):
    if isinstance(content, bytes):
        (folder / "w.pth").write_bytes(content)
    else:
        torch.save(content, folder / "w.pth")
    with pytest.raises(HandlerLoadError, match=words):
        serve("model: w.pth\nclass: net.py:Net", reference[1])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def Net():\n    return 3\n", "makes a int, not a torch.nn.Module"),
        ("Net = 3\n", "is a int, no class"),
        ("", "has no Net"),
        ("raise KeyError('early')\n", "KeyError: 'early'"),
    ],
)
def test_class_that_is_not_a_module_is_refused(folder, serve, reference, source, words):
    (folder / "bad.py").write_text(source)
    with pytest.raises(HandlerLoadError, match=words):
        serve("class: bad.py:Net", reference[1])


@pytest.mark.parametrize("name", ["net.pt", "net.pt2", "net.so", "net.pth"])
def test_torch_is_named_where_it_is_missing(folder, serve, reference, monkeypatch, name):
    import sys

    (folder / name).write_bytes(b"no model")
    monkeypatch.setitem(sys.modules, "torch", None)
    config = f"model: {name}\ndevice: cpu" + ("\nclass: net.py:Net" if name == "net.pth" else "")
    if name == "net.pth":
        (folder / "net.py").write_text("def Net():\n    return None\n")
    with pytest.raises(HandlerLoadError, match=r"pip install (torch|safetensors)"):
        serve(config, reference[1])


def test_onnx_on_a_device_without_a_provider(folder, serve, reference):
    write_onnx(reference[0], folder / "net.onnx")
    with pytest.raises(
        HandlerLoadError, match=r"net\.onnx cannot run on mps: this ONNX Runtime offers"
    ):
        serve("model: net.onnx\ndevice: mps", reference[1])


def test_settings_of_torch_are_applied_once_the_model_is_loaded(serve, reference):
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        serve("class: net.py:Net\nthreads: 1\nmatmul_precision: high", reference[1])
        assert torch.get_num_threads() == 1
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
