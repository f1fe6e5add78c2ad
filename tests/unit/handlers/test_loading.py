"""The handler that a target names, and the separation of two models' files."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

from ksrv.errors import HandlerFailed
from ksrv.handlers.runner import HandlerLoadError
from ksrv.testing import load
from tests.support.model_files.onnx_models import write_scale


def ones(rows):
    return np.ones((rows, 2), np.float32)


def test_models_with_equal_file_names_are_separate(runner_of, tmp_path, batch_of):
    handler = """
    import net
    def inference(x):
        import late
        return x * net.FACTOR + late.OFFSET
    """
    for name, factor in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(f"FACTOR = {factor}\n")
        (tmp_path / name / "late.py").write_text(f"OFFSET = {factor * 10}\n")
    one, two = runner_of(handler, name="one"), runner_of(handler, name="two")
    assert one.run(batch_of(ones(1))).tensors[0].data.tolist() == [[22, 22]]
    assert two.run(batch_of(ones(1))).tensors[0].data.tolist() == [[33, 33]]


@pytest.mark.parametrize(
    "source",
    [
        "def load():\n    try:\n        int('a')\n    except ValueError as error:\n        raise error from error\nload()\n",
        "one, two = ValueError('a'), ValueError('b')\none.__cause__, two.__cause__ = two, one\nraise one\n",
    ],
    ids=["an error that caused itself", "two errors that caused each other"],
)
def test_error_with_cyclic_causes_is_reported(runner_of, source):
    with pytest.raises(HandlerLoadError, match=r"ValueError: .* \(handler\.py, line "):
        runner_of(source)


def test_a_constructor_whose_arguments_a_decorator_fills_in_is_called(runner_of, batch_of):
    runner = runner_of(
        """
        import functools
        from ksrv import BaseHandler

        def with_settings(init):
            @functools.wraps(init)
            def filled(self):
                init(self, 3)
            return filled

        class Scale(BaseHandler):
            @with_settings
            def __init__(self, factor):
                self.factor = factor

            def inference(self, x):
                return x * self.factor
        """
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[3, 3]]


LATE = """
from ksrv import BaseHandler
class Late(BaseHandler):
    def predict(self, x):
        return x * 2
"""


@pytest.mark.parametrize(
    "methods",
    [
        "    def preprocess(self, batch):\n        self.model = self.predict\n        return batch['x']\n",
        "    def initialize(self, context):\n"
        "        super().initialize(context)\n"
        "        def load():\n"
        "            self.model = self.predict\n"
        "        self.later = load\n",
        "    def explain(self, batch):\n        return self.predict(batch['x'])\n",
        "    def __init__(self):\n        self.later = lambda: setattr(self, 'model', self.predict)\n",
    ],
    ids=[
        "for the first request",
        "by a function that runs later",
        "for explanations alone",
        "by the constructor",
    ],
)
def test_a_handler_without_inference_may_have_its_model_later(runner_of, methods):
    runner_of(LATE + methods)


def test_missing_model_is_logged(runner_of, batch_of, caplog):
    runner = runner_of(LATE + "    def initialize(self, context):\n        pass\n")
    with pytest.raises(HandlerFailed, match="the stage inference of the model m failed"):
        runner.run(batch_of(ones(1)))
    assert "the model has no file to call; rename Late.predict to inference" in caplog.text


HANDLER = """
from ksrv import BaseHandler
class {name}(BaseHandler):
    def inference(self, x):
        return x * {factor}
"""


CALLABLE = """
class Served:
    def __call__(self, {parameters}):
        return {x} * 6
"""


@pytest.mark.parametrize(
    ("source", "target", "factor"),
    [
        (HANDLER.format(name="One", factor=2), "handler.py", 2),
        (HANDLER.format(name="One", factor=2) + HANDLER.format(name="Two", factor=3),
         "handler.py:Two", 3),
        (HANDLER.format(name="One", factor=2)
         + "class Two(One):\n    def inference(self, x):\n        return x * 5\n", "handler.py", 5),
        ("def anything(x):\n    return x * 7\n", "handler.py:anything", 7),
        ("def inference(x):\n    return x * 7\n", "handler.py", 7),
        ("def handle(batch, context):\n    return batch['x'] * batch.rows * 4\n", "handler.py", 4),
        ("class Call:\n    def __call__(self, x):\n        return x * 8\n", "handler.py:Call", 8),
        ("class Own:\n    def handle(self, batch, context):\n        return batch['x'] * 9\n",
         "handler.py:Own", 9),
        ("import functools, operator\ntwice = functools.partial(operator.mul, 2)\n",
         "handler.py:twice", 2),
        ("import functools, operator\ninference = functools.partial(operator.mul, 2)\n", "handler.py", 2),
        (CALLABLE.format(parameters="x", x="x") + "inference = Served()\n", "handler.py", 6),
        (CALLABLE.format(parameters="batch, context", x="batch['x']") + "handle = Served()\n", "handler.py", 6),
        (CALLABLE.format(parameters="batch, context", x="batch['x']") + "handle = Served()\n", "handler.py:handle", 6),
        (CALLABLE.format(parameters="batch, context", x="batch['x']") + "handle = Served().__call__\n",
         "handler.py", 6),
        (HANDLER.format(name="One", factor=2)
         + "import abc\n"
         "class Unused(BaseHandler, abc.ABC):\n    @abc.abstractmethod\n    def score(self):\n        pass\n",
         "handler.py", 2),
    ],
)  # fmt: skip
def test_valid_targets_are_loaded(runner_of, batch_of, source, target, factor):
    runner = runner_of(source, target=target)
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[factor, factor]]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (HANDLER.format(name="One", factor=2) + HANDLER.format(name="Two", factor=3),
         "handler.py", "several handlers .One, Two."),
        ("class Old:\n    def handle(self, data, context):\n        return data\n", "handler.py",
         "if Old is written for TorchServe, let .*handler.py import ts"),
        ("x = 3\n", "handler.py:x", "neither a class nor a function; name one of these"),
        ("class C:\n    pass\n", "handler.py:C", "no method handle"),
        ("def f(:\n", "handler.py", "SyntaxError"),
        ("raise RuntimeError('on import')\n", "handler.py", "RuntimeError: on import"),
        ("", "no_such_package.module:Name", "No module named 'no_such_package'"),
        ("", "collections.abc:Nothing", "has no Nothing"),
    ],
)  # fmt: skip
def test_invalid_targets_are_refused(runner_of, source, target, words):
    with pytest.raises(HandlerLoadError, match=words):
        runner_of(source, target=target)


@pytest.mark.parametrize(
    "target", ["ksrv_test_package.part:Installed", "ksrv_test_package.part.Installed"]
)
def test_dotted_path_is_loaded(runner_of, batch_of, tmp_path, monkeypatch, target):
    package = tmp_path / "site/ksrv_test_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(HANDLER.format(name="Installed", factor=6))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    runner = runner_of("", target=target)
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[6, 6]]


def test_every_import_form_finds_a_sibling_module(runner_of, batch_of):
    runner = runner_of(
        """
        import json
        import net as renamed
        import parts.inner
        import parts.inner as inner
        from net import FACTOR
        from parts import inner as third
        from parts.inner import VALUE
        from . import net as relative
        from .parts.inner import VALUE as again

        def inference(x):
            assert parts.inner is inner is third
            assert renamed is relative
            assert json.loads("1") == 1
            return x * FACTOR * VALUE * again
        """,
        files={
            "net.py": "import parts.inner\nFACTOR = parts.inner.VALUE + 1\n",
            "parts/__init__.py": "",
            "parts/inner.py": "from parts.deeper import VALUE\n",
            "parts/deeper.py": "VALUE = 2\n",
        },
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[12, 12]]


def test_a_folder_of_data_does_not_hide_a_package(runner_of, batch_of):
    runner = runner_of(
        """
        import numpy
        import json.decoder
        def inference(x):
            return numpy.zeros_like(x)
        """,
        files={"numpy/readme.txt": "weights", "json/readme.txt": "more"},
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[0, 0]]


def test_handler_in_a_subfolder_is_loaded(runner_of, batch_of):
    runner = runner_of(
        "",
        target="code/main.py",
        files={
            "code/main.py": "import shared\ndef inference(x):\n    return x * shared.FACTOR\n",
            "shared.py": "FACTOR = 3\n",
        },
    )
    assert runner.run(batch_of(ones(1))).tensors[0].data.tolist() == [[3, 3]]


def test_module_contents_are_freed_after_close(runner_of, batch_of):
    runner = runner_of(
        """
        import numpy as np
        WEIGHTS = np.ones(4, np.float32)
        def inference(x):
            return WEIGHTS.reshape(2, 2)
        """
    )
    held = weakref.ref(runner.run(batch_of(ones(2))).tensors[0].data.base)
    runner.close()
    del runner
    gc.collect()
    assert held() is None


@pytest.mark.parametrize(
    "source",
    [
        "def handle(batch, context):\n    return context.load_model().model(batch['x'])\n",
        "from ksrv import BaseHandler\n\n\nclass Loads(BaseHandler):\n"
        "    def initialize(self, context):\n        super().initialize(context)\n"
        "        self.again = context.load_model().model\n\n"
        "    def inference(self, x):\n        return self.again(x)\n",
    ],
)
def test_model_file_is_loaded_once(tmp_path, monkeypatch, source):
    onnxruntime = pytest.importorskip("onnxruntime")
    opened = []
    kind = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda *args, **named: opened.append(args) or kind(*args, **named),
    )
    write_scale(tmp_path / "m.onnx", 3, size=2)
    (tmp_path / "handler.py").write_text(source)
    with load(tmp_path) as model:
        for _ in range(2):
            assert model.infer({"x": ones(1)})["y"].tolist() == [[3, 3]]
    assert len(opened) == 1


def test_importing_ksrv_changes_no_import_machinery():
    code = (
        "import sys; before = list(sys.meta_path); import ksrv.handlers.runner;"
        "own = [finder for finder in sys.meta_path if finder.__module__ == 'ksrv._native'];"
        "assert len(own) == 1, own;"  # finds the compiled modules in their one file
        "assert [one for one in sys.meta_path if one not in own] == before;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
