"""The folders of a model of Triton's Python backend, and its settings."""

from pathlib import Path

import pytest

from ksrv.dialects.registry import formats
from ksrv.repository.layout import Repository


def make(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("model.py", "class TritonPythonModel: pass\n"), ("1/model.py", "class Other: pass\n")],
)
def test_a_python_model_that_is_not_where_triton_has_it_is_told_where(tmp_path, name, text):
    make(tmp_path, {f"m/{name}": text})
    entry = Repository([tmp_path], formats()).scan()["m"]
    errors = [entry.error, *(source.error for source in entry.versions.values())]
    assert "model.py is not read: a model.py of Triton's Python backend is in a version" in str(
        errors
    )


@pytest.mark.parametrize(
    ("path", "python"),
    [("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "env.tar.gz"), ("/opt/env", "/opt/env")],
)
def test_a_python_model_of_triton_has_its_environment(tmp_path, path, python):
    parameter = f'{{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'
    config = f'backend: "python" parameters {parameter}'
    make(tmp_path, {"m/1/model.py": "class TritonPythonModel: pass\n", "m/config.pbtxt": config})
    [source] = Repository([tmp_path], formats()).scan()["m"].versions.values()
    assert source.config.python == python


def test_a_python_model_of_triton_needs_no_settings(tmp_path):
    make(tmp_path, {"m/1/model.py": "class TritonPythonModel: pass\n"})
    [source] = Repository([tmp_path], formats()).scan()["m"].versions.values()
    assert source.error is None
    assert (source.config.executor, Path(source.config.model).name) == ("process", "model.py")
