"""Any text in a model.yaml becomes settings or one clear error."""

import string

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ksrv.model.config import ModelConfig, ModelSource
from ksrv.repository.model_yaml import ConfigError, load_model_config
from ksrv.repository.yaml_document import Document
from tests.support.examples import examples

KEYS = [
    "handler", "model", "class", "device", "inputs", "outputs", "labels", "batching", "executor",
    "retry", "instances", "threads", "timeout_ms", "queue_size", "warmup", "version_policy",
    "parameters", "pt2", "envelope", "env", "cuda_graphs", "matmul_precision", "name", "datatype", "shape", "image",
    "color", "mean", "max_batch_size", "latest", "specific",
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["handler.py", "handler.py:H", "m.onnx", "auto", "FP32", "RGB", "all", "1:2"])
    | st.text(string.printable, max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for name in ("handler.py", "m.onnx"):
        (folder / name).write_text("")
    return folder


def check(folder):
    problem = ""
    try:
        config = load_model_config(folder)
    except ConfigError as error:
        problem = str(error)
    if problem:
        assert problem.startswith(str(folder / "model.yaml"))
        return
    assert isinstance(config, ModelConfig)
    source = ModelSource(name="m", version="", folder=folder, root=folder, config=config)
    assert ModelSource.from_json(source.to_json()) == source


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_values_of_the_known_keys(folder, content):
    (folder / "model.yaml").write_text(
        yaml.safe_dump({"handler": "handler.py", **content}, allow_unicode=True), "utf-8"
    )
    check(folder)


@given(st.binary(max_size=200) | st.text("{}[]:,&*!-|>'\"#\n abc123", max_size=60).map(str.encode))
@examples(500)
def test_any_bytes(folder, content):
    (folder / "model.yaml").write_bytes(content)
    check(folder)


@given(values)
@examples(200)
def test_document_equals_yaml_safe_load(folder, content):
    path = folder / "other.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), "utf-8")
    assert repr(Document.read(path).value) == repr(yaml.safe_load(path.read_text("utf-8")))
