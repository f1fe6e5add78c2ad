"""Decorated stages and functions: the decorator's signature decides how they are called."""

import textwrap

import numpy as np
import pytest

from ksrv.handlers.runner import HandlerLoadError

DECORATORS = """
import functools
from ksrv import BaseHandler

def filled(**more):
    def wrap(function):
        @functools.wraps(function)
        def decorated(*values):
            return function(*values, **more)
        return decorated
    return wrap

def of_batch_and_context(function):
    @functools.wraps(function)
    def decorated(batch, context):
        return function(batch)
    return decorated

def without_inputs(function):
    @functools.wraps(function)
    def decorated(self, x):
        self.x = x
        return function(self)
    return decorated

def with_batch(function):
    @functools.wraps(function)
    def decorated(self, x):
        return function(self, x, batch=2)
    return decorated

def logged(function):
    @functools.wraps(function)
    def decorated(*values, **named):
        return function(*values, **named)
    return decorated
"""
INPUTS = "inputs: [{name: x, datatype: FP32, shape: [2]}]\n"
FORMS = {
    "an argument of inference is filled in": """
        class H(BaseHandler):
            @filled(scale=2)
            def inference(self, x, scale):
                return x * scale
    """,
    "an argument of the function inference is filled in": """
        @filled(scale=2)
        def inference(x, scale):
            return x * scale
    """,
    "an argument of preprocess is filled in": """
        class H(BaseHandler):
            @filled(scale=2)
            def preprocess(self, batch, scale):
                return batch["x"] * scale
            def inference(self, x):
                return x
    """,
    "an argument of the method handle is filled in": """
        class H(BaseHandler):
            @filled(scale=2)
            def handle(self, batch, context, scale):
                return batch["x"] * scale
    """,
    "an argument of the function handle is filled in": """
        @filled(scale=2)
        def handle(batch, context, scale):
            return batch["x"] * scale
    """,
    "the context is dropped": """
        @of_batch_and_context
        def handle(batch):
            return batch["x"] * 2
    """,
    "the input is dropped": """
        class H(BaseHandler):
            @without_inputs
            def inference(self):
                return self.x * 2
    """,
    "the decorator chooses the function": """
        class H(BaseHandler):
            @functools.singledispatchmethod
            def inference(self, x):
                return x * 2
    """,
    "the batch is filled in": """
        class H(BaseHandler):
            @with_batch
            def inference(self, x, batch):
                return x * batch
    """,
    "the batch is passed on": """
        class H(BaseHandler):
            @logged
            def inference(self, x, batch):
                return x * 2 * len(batch.requests)
    """,
    "inference is a partial": """
        class H(BaseHandler):
            inference = functools.partial(lambda scale, x: x * scale, 2)
    """,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_decorated_stage_that_can_be_called_is_served(runner_of, batch_of, form):
    runner = runner_of(DECORATORS + textwrap.dedent(form), INPUTS)
    [output] = runner.run(batch_of(np.ones((1, 2), np.float32))).tensors
    assert output.data.tolist() == [[2, 2]]


REFUSED = {
    r"inference\(x, y, scale\) cannot be called with the declared inputs: .*'y'": """
        def of_two(function):
            @functools.wraps(function)
            def decorated(self, x, y):
                return function(self, x, y, 1)
            return decorated

        class H(BaseHandler):
            @of_two
            def inference(self, x, y, scale):
                return x
    """,
    r"inference\(x, scale\) cannot be called": """
        def scaled(x, scale):
            return x
        class H(BaseHandler):
            inference = functools.partial(scaled)
    """,
    r"H.inference\(\) has no parameter": """
        def of_nothing(function):
            @functools.wraps(function)
            def decorated(self):
                return function(self, 1)
            return decorated

        class H(BaseHandler):
            @of_nothing
            def inference(self, x):
                return x
    """,
}


@pytest.mark.parametrize(("words", "form"), REFUSED.items())
def test_a_decorator_that_cannot_be_called_is_refused(runner_of, words, form):
    with pytest.raises(HandlerLoadError, match=words):
        runner_of(DECORATORS + textwrap.dedent(form), INPUTS)


def test_an_input_may_be_called_function(runner_of):
    runner_of(
        "def inference(function, self):\n    return function + self\n",
        "inputs: [{name: function, datatype: FP32, shape: [2]}, {name: self, datatype: FP32, shape: [2]}]\n",
    )
