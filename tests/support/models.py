"""Models that the integration tests serve, written to disk as a user would write them."""

from collections.abc import Mapping
from pathlib import Path

DOUBLE = """
from ksrv import BaseHandler


class Double(BaseHandler):
    def inference(self, x):
        return {"y": x * 2}
"""

SLOW = """
import time

from ksrv import BaseHandler


class Slow(BaseHandler):
    def inference(self, x):
        time.sleep(float(self.context.parameters["seconds"]))
        return {"y": x}
"""

MEAN = """
from ksrv import BaseHandler


class Mean(BaseHandler):
    def inference(self, image):
        return {"mean": image.mean(axis=(1, 2))}
"""

ECHO = """
from ksrv import BaseHandler


class Echo(BaseHandler):
    def inference(self, x):
        return {"y": x}
"""

BROKEN = """
from ksrv import BaseHandler


class Broken(BaseHandler):
    def initialize(self, context):
        raise RuntimeError("the weights are gone")
"""

HOLD = """
import time
from pathlib import Path

from ksrv import BaseHandler

HERE = Path(__file__).parent


def hold():
    (HERE / "began").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""
"""The beginning of a handler that can wait until its test makes the file `go`."""

HELD = f"""{HOLD}

class Held(BaseHandler):
    def inference(self, x):
        hold()
        return {{"y": x}}
"""

VECTOR = """
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
"""

TWO = """
def inference(a, b):
    return {"sum": a + b, "first": a[:, 0]}
"""
TWO_YAML = """
inputs:
  - {name: a, datatype: INT32, shape: [-1, 2]}
  - {name: b, datatype: INT32, shape: [-1, 2]}
outputs:
  - {name: sum, datatype: INT32, shape: [-1, 2]}
  - {name: first, datatype: INT32, shape: [-1]}
"""


def write_model(root: Path, name: str, handler: str, yaml: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(handler)
    (folder / "model.yaml").write_text("handler: handler.py\n" + yaml)
    return folder


def write_functions(root: Path, source: str, models: Mapping[str, str]) -> None:
    """Write a model for each function or class of a file.

    Args:
        models: More lines of model.yaml by the name of the function, which is the name of the model too.
    """
    for name, yaml in models.items():
        (root / name).mkdir(parents=True)
        (root / name / "handler.py").write_text(source)
        (root / name / "model.yaml").write_text(f"handler: handler.py:{name}\n{yaml}")


def write_double(root: Path) -> Path:
    """A model that doubles four numbers."""
    return write_model(root, "double", DOUBLE, VECTOR)


def write_slow(root: Path, seconds: float = 0.2) -> Path:
    """A model that sleeps before it answers its input."""
    return write_model(
        root, "slow", SLOW, f"{VECTOR}parameters: {{seconds: {seconds}}}\ninstances: 4\n"
    )


def write_mean(root: Path) -> Path:
    """An image model: the mean colour of an 8x8 picture."""
    return write_model(
        root,
        "mean",
        MEAN,
        "inputs: [{name: image, datatype: FP32, shape: [-1, 8, 8, 3]}]\n"
        "outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]\n",
    )


def write_echo(root: Path) -> Path:
    """A model that answers any row of numbers."""
    return write_model(
        root,
        "echo",
        ECHO,
        "inputs: [{name: x, datatype: FP32, shape: [-1, -1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [-1, -1]}]\n",
    )


def write_text(root: Path) -> Path:
    """A model that answers texts, or any bytes, as they came."""
    return write_model(
        root,
        "text",
        ECHO,
        "inputs: [{name: x, datatype: BYTES, shape: [-1]}]\n"
        "outputs: [{name: y, datatype: BYTES, shape: [-1]}]\n",
    )


def write_two(root: Path) -> Path:
    """Write a model with two inputs and two outputs."""
    return write_model(root, "two", TWO, TWO_YAML)


def write_broken(root: Path) -> Path:
    """A model whose handler cannot be initialized."""
    return write_model(root, "broken", BROKEN, VECTOR)


def write_all(root: Path) -> Path:
    """The models of plain numbers, in one repository."""
    for write in (write_double, write_slow, write_echo):
        write(root)
    return root
