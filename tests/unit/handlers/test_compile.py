"""The forms of `pt2:`, and failed compilations."""

import logging
from collections import namedtuple
from types import SimpleNamespace

import pytest

from ksrv.handlers import compile as compile_module
from ksrv.handlers.compile import compile_model
from ksrv.loaders.arguments import NamedArguments
from ksrv.loaders.loaded import LoadedModel
from ksrv.model.compile_plan import CompilePlan, read_plan
from ksrv.model.config import ModelConfig
from ksrv.model.fault import Fault
from ksrv.model.spec import TensorSpec

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("section", "plan"),
    [
        (None, CompilePlan()),
        ("inductor", CompilePlan(True, arguments={"backend": "inductor"})),
        ({"compile": {"enable": False, "backend": "inductor"}},
         CompilePlan(arguments={"backend": "inductor"})),
        ({"compile": {"enable": True}}, CompilePlan(True)),
        ({"compile": {"enable": True, "mode": "reduce-overhead", "dynamic": True,
                      "fullgraph": False, "options": None}, "required": True},
         CompilePlan(True, True, {"mode": "reduce-overhead", "dynamic": True,
                                  "fullgraph": False})),
        ({"backend": "eager", "mode": "default"},
         CompilePlan(True, arguments={"backend": "eager", "mode": "default"})),
        ({"export": {"aot_compile": True}}, CompilePlan()),
        ({}, CompilePlan()),
    ],
)  # fmt: skip
def test_every_form_of_pt2_is_read(section, plan):
    assert read_plan(section) == plan


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ([1], "list"),
        ({"compile": True}, "pt2.compile"),
        ({"compile": {"enable": "yes"}}, "enable"),
        ({"compile": {"enable": True, "bakend": "x"}}, "bakend"),
        ({"compile": {"enable": True}, "mode": "default"}, "mode"),
        ({"compile": {"enable": True, "mode": "default", "options": {"a": 1}}}, "exclude"),
        ({"compile": {"enable": True}, "required": 1}, "required"),
        ({"speed": "high"}, "speed"),
    ],
)
def test_unknown_form_of_pt2_is_an_error(section, word):
    with pytest.raises(Fault, match=word):
        read_plan(section)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


def compiled(pt2, module=None, wrap=()):
    model = module if module is not None else Doubled()
    loaded = LoadedModel(NamedArguments.wrap(model, wrap), True, "pytorch_eager")
    context = SimpleNamespace(config=ModelConfig(pt2=pt2), model_name="m", device="cpu")
    return compile_model(loaded, context)


def enabled(backend, **more):
    return {"compile": {"enable": True, "backend": backend}, **more}


def test_inputs_that_the_model_refuses_do_not_end_compilation():
    torch._dynamo.reset()
    model = compiled(enabled("aot_eager"), torch.nn.Linear(3, 2))
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.ones(2, 5))
        assert model(torch.ones(2, 3)).shape == (2, 2)
    assert model.failure is None


def test_an_unknown_backend_stays_eager_with_a_warning(caplog):
    module = Doubled()
    with caplog.at_level(logging.WARNING, "ksrv.handlers"):
        assert compiled(enabled("warp_drive"), module) is module
    assert "warp_drive" in caplog.text
    with pytest.raises(Fault, match="warp_drive"):
        compiled(enabled("warp_drive", required=True))


def test_names_are_kept_around_a_compiled_module():
    class Minus(torch.nn.Module):
        def forward(self, first, second):
            return first - second

    names = tuple(TensorSpec(name, "FP32", (-1,)) for name in ("in-1", "in-2"))
    model = compiled(enabled("eager"), Minus(), names)
    answer = model(**{"in-2": torch.ones(1), "in-1": torch.full((1,), 5.0)})
    assert answer.tolist() == [4]


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}],
)
def test_outputs_of_cuda_graphs_are_cloned(monkeypatch, arguments):
    buffer = torch.ones(2)
    pair = namedtuple("pair", "first second")

    class SameMemory(torch.nn.Module):
        def forward(self, kind):
            return {
                "tensor": buffer,
                "dict": {"a": buffer, "n": 3},
                "list": [buffer],
                "tuple": (buffer, None),
                "pair": pair(buffer, buffer),
            }[kind]

    monkeypatch.setattr(compile_module, "_compile", lambda module, _: module.forward)
    loaded = LoadedModel(SameMemory(), True, "pytorch_eager")
    config = ModelConfig(pt2={"compile": {"enable": True, **arguments}})
    context = SimpleNamespace(config=config, model_name="m", device="cuda:0")
    model = compile_model(loaded, context)
    assert model("tensor").data_ptr() != buffer.data_ptr()
    made = model("dict")
    assert made["n"] == 3
    assert made["a"].data_ptr() != buffer.data_ptr()
    assert model("list")[0].data_ptr() != buffer.data_ptr()
    assert model("tuple")[0].data_ptr() != buffer.data_ptr()
    assert model("pair").second.data_ptr() != buffer.data_ptr()
    context.device = "cpu"
    assert compile_model(loaded, context)("tensor") is buffer


def test_a_compiled_model_still_shows_the_modules_attributes():
    module = torch.nn.Linear(2, 3)
    model = compiled(enabled("eager"), module)
    assert model.out_features == 3
    assert model.weight is module.weight


def test_compiled_model_is_not_compiled_again(caplog):
    def run(x):
        return x

    with caplog.at_level(logging.WARNING, "ksrv.handlers"):
        assert compiled(enabled("eager"), run) is run
    assert "only eager modules are compiled" in caplog.text


def test_a_torch_compile_that_refuses_its_keywords_stays_eager(monkeypatch, caplog):
    def refuse(module, arguments):
        raise ValueError("no such mode")

    monkeypatch.setattr(compile_module, "_compile", refuse)
    with caplog.at_level(logging.WARNING, "ksrv.handlers"):
        assert compiled(enabled("eager"))(torch.ones(1)).tolist() == [2]
    assert "no such mode" in caplog.text
