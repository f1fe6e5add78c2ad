"""The models and the server of the tests of TensorFlow Serving's API."""

import pytest

from ksrv.model.datatypes import DTYPES
from ksrv.testing import Server
from tests.support.models import ECHO, write_mean, write_model, write_text, write_two
from tests.support.tfserving import connected

IDENTITY = """
def inference(x):
    return {"y": x}
"""
CLASSES = """
import numpy as np

def inference(x, name=None):
    return {"scores": x / x.sum(axis=1, keepdims=True)}
"""
CLASSES_YAML = """
inputs:
  - {name: x, datatype: FP32, shape: [-1, 3]}
outputs:
  - {name: scores, datatype: FP32, shape: [-1, 3]}
labels: labels.json
"""
SUM = """
import numpy as np

def inference(a, b):
    return {"outputs": (a + b[:, None]).astype(np.float32)}
"""
SUM_YAML = """
inputs:
  - {name: a, datatype: FP32, shape: [-1, 1]}
  - {name: b, datatype: INT64, shape: [-1]}
outputs:
  - {name: outputs, datatype: FP32, shape: [-1, 1]}
"""
NAMED = """
import numpy as np

def inference(x):
    names = np.array([b"cat", b"dog"], object)[None].repeat(len(x), 0)
    return {"classes": names, "scores": x}
"""
NAMED_YAML = """
inputs:
  - {name: x, datatype: FP32, shape: [-1, 2]}
outputs:
  - {name: classes, datatype: BYTES, shape: [-1, 2]}
  - {name: scores, datatype: FP32, shape: [-1, 2]}
"""
REVERSED = """
def inference(x):
    return {"image_bytes": [bytes(text)[::-1] for text in x]}
"""
REVERSED_YAML = """
inputs: [{name: x, datatype: BYTES, shape: [-1]}]
outputs: [{name: image_bytes, datatype: BYTES, shape: [-1]}]
"""


def write_models(root):
    """Write a model for each datatype, with a fixed shape so that calls need no Python, and other models."""
    for datatype in DTYPES:
        yaml = "".join(
            f"{part}: [{{name: {name}, datatype: {datatype}, shape: [-1, 2]}}]\n"
            for part, name in (("inputs", "x"), ("outputs", "y"))
        )
        write_model(root, datatype.lower(), ECHO, yaml)
    write_mean(root)
    write_text(root)
    write_two(root)
    write_model(root, "sum", SUM, SUM_YAML)
    write_model(root, "named", NAMED, NAMED_YAML)
    write_model(root, "reversed", REVERSED, REVERSED_YAML)
    write_model(root, "classes", CLASSES.replace(", name=None", ""), CLASSES_YAML)
    (root / "classes/labels.json").write_text('["ant", "bee", "cow"]')


@pytest.fixture(scope="module", params=["", "executor: process\n"], ids=["inline", "process"])
def served(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("tfs")
    write_models(root)
    for folder in root.iterdir():
        with (folder / "model.yaml").open("a") as yaml:
            yaml.write(request.param)
    with Server(root) as server:
        yield server


@pytest.fixture
def client(served):
    with connected(served) as found:
        yield found
