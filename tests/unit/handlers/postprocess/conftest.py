"""A model whose file returns its inputs, with steps of `postprocess:`."""

from contextlib import contextmanager

import pytest

from ksrv.testing import load
from tests.support.model_files.onnx_models import write_graph


@pytest.fixture
def served(tmp_path):
    """Serve steps on arrays: `with served(steps, scores=array) as model`. Each array is an input and an output."""

    @contextmanager
    def make(settings, labels=None, shapes=None, **arrays):
        declared = {
            name: (kind_of(array), (shapes or {}).get(name) or ("N", *array.shape[1:]))
            for name, array in arrays.items()
        }
        inputs = {f"{name}_in": one for name, one in declared.items()}
        nodes = [("Identity", [f"{name}_in"], [name], {}) for name in arrays]
        write_graph(tmp_path / "m.onnx", nodes, inputs, declared)
        text = f"model: m.onnx\nbatching: {{max_batch_size: 8}}\n{settings}\n"
        if labels is not None:
            (tmp_path / "labels.txt").write_text("\n".join(labels))
            text += "labels: labels.txt\n"
        (tmp_path / "model.yaml").write_text(text)
        with load(tmp_path) as model:
            yield model, {f"{name}_in": array for name, array in arrays.items()}

    return make


def kind_of(array):
    return {"float32": "FP32", "float16": "FP16", "int64": "INT64"}[str(array.dtype)]


@pytest.fixture
def answer(served):
    """Return the outputs of steps on arrays."""

    def make(settings, labels=None, **arrays):
        with served(settings, labels, **arrays) as (model, inputs):
            return model.infer(inputs)

    return make
