"""An editor's completions while a handler or a model.yaml is written."""

import inspect

import pytest

import ksrv
from ksrv.handlers.batch import Batch
from ksrv.handlers.context import Context
from ksrv.repository.json_schema import json_schema
from ksrv.server.dialects import formats
from tests.support.language_server import LanguageServer

HANDLER = """
from ksrv import BaseHandler, Float32, Image


class Written(BaseHandler):
    inputs = {"image": Image[8, 8, 3]
}

    def initialize(self, context):
        super().initialize(context)
        self.least = context.

    def preprocess(self, batch):
        batch.
        return batch["image"]

    def inference(self, image: Float32[3]):
        self.context.metrics.
        return self.
"""


def public(owner):
    fields = set(inspect.get_annotations(owner))
    return {name for name in fields | set(vars(owner)) if not name.startswith("_")}


@pytest.fixture
def editor(opened, pyright):
    file = opened / "handler.py"
    file.write_text(HANDLER)
    with LanguageServer([*pyright("langserver"), "--stdio"], opened) as server:
        server.open(file)
        yield server


def test_names_are_offered(editor, opened):
    file = opened / "handler.py"
    assert public(Batch) <= editor.completions(file, "batch.")
    assert public(Context) <= editor.completions(file, "least = context.")
    assert {"counter", "gauge", "histogram"} <= editor.completions(file, "context.metrics.")
    assert {"context", "device", "labels", "model"} <= editor.completions(file, "return self.")


def test_hover_shows_the_declared_tensor(editor, opened):
    file = opened / "handler.py"
    assert "FP32" in editor.hover(file, "Float32")
    assert "JPEG or PNG" in editor.hover(file, "Image")


def test_every_type_of_ksrv_is_known(opened, pyright):
    file = opened / "types.py"
    file.write_text("import ksrv\n\nksrv.\n")
    with LanguageServer([*pyright("langserver"), "--stdio"], opened) as server:
        server.open(file)
        assert set(ksrv.__all__) <= server.completions(file, "\nksrv.")


def offered(schema, part, key):
    """Return the values that an editor offers for a key of a section, wherever the schema lists them."""

    def listed(found):
        if isinstance(found, dict):
            return [
                *found.get("enum", []),
                *(one for value in found.values() for one in listed(value)),
            ]
        return [one for value in found for one in listed(value)] if isinstance(found, list) else []

    return set(listed(schema["$defs"][part]["properties"][key]))


def test_keys_and_values_of_model_yaml_are_offered():
    schema = json_schema(formats())
    assert {"handler", "model", "inputs", "batching"} <= set(
        schema["$defs"]["ModelKeys"]["properties"]
    )
    assert {"inline", "process"} <= offered(schema, "ModelKeys", "executor")
    assert {"FP32", "BYTES", "INT64"} <= offered(schema, "InputSection", "datatype")
    assert {"pillow", "letterbox", "none"} <= offered(schema, "ImageSection", "resize")
