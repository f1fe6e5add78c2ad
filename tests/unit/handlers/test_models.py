"""Which handlers are taken for callers of other models."""

import types

import pytest

from ksrv import BaseHandler
from ksrv.handlers.models import calls_models


def handler_of(text):
    module = types.ModuleType("handler")
    vars(module)["BaseHandler"] = BaseHandler
    exec(compile(text, "handler.py", "exec"), vars(module))
    return module.H()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def inference(self, x):\n        return self.context.models['a'].infer({'x': x})", True),
        (
            "def handle(self, batch, context):\n        called = context.models\n        return called",
            True,
        ),
        ("def inference(self, x):\n        return [self.context.models[n] for n in 'ab']", True),
        (
            "async def inference(self, x):\n        return await self.context.models['a'].submit(x)",
            True,
        ),
        ("def inference(self, x):\n        return torchvision.models.resnet18()", False),
        ("def inference(self, x):\n        return self.models['a'](x)", False),
        ("def inference(self, x):\n        models = [1]\n        return models", False),
        ("pass", False),
    ],
)
def test_reading_the_contexts_models_is_found(text, expected):
    assert calls_models(handler_of(f"class H(BaseHandler):\n    {text}\n")) is expected


def test_a_helper_of_the_same_module_is_found():
    text = """
def call(context, x):
    return context.models["a"].infer({"x": x})


class H(BaseHandler):
    def inference(self, x):
        return call(self.context, x)
"""
    assert calls_models(handler_of(text))
