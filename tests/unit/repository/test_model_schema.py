"""The JSON schema of model.yaml has every key, and accepts what the server accepts."""

import json
import re

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from ksrv.cli.main import main
from ksrv.repository.settings import keys
from tests.support.paths import ROOT

DOCUMENTED = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/models.md").read_text(), re.DOTALL)
SECTIONS = [kind for kind in vars(keys).values() if isinstance(kind, msgspec.StructMeta)]


def fits(value, schema):
    return Draft202012Validator(schema).is_valid(value)


@pytest.fixture(scope="module")
def schema():
    printed = CliRunner().invoke(main, ["schema"])
    assert printed.exit_code == 0
    return json.loads(printed.output)


def test_every_key_of_the_structs_is_in_the_schema(schema):
    Draft202012Validator.check_schema(schema)
    described = schema["$defs"]
    for kind in SECTIONS:
        keys = {field.encode_name for field in msgspec.structs.fields(kind)}
        if kind.__name__ in described:
            assert set(described[kind.__name__]["properties"]) == keys
            assert described[kind.__name__]["additionalProperties"] is False
    assert {"ModelKeys", "UnpackedKeys", "ImageSection", "BatchingSection"} <= set(described)


def test_descriptions_are_for_authors_of_models(schema):
    assert schema["$defs"]["ModelKeys"]["description"] == "The settings of one version of a model."


@pytest.mark.parametrize(
    "text", [*DOCUMENTED, *(path.read_text() for path in ROOT.glob("examples/**/model.yaml"))]
)
def test_settings_of_docs_and_examples_are_valid(schema, text):
    assert fits(yaml.safe_load(text), schema)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("handler: handler.py", True),
        ("labels:", True),
        ("torchserve: true\ntimeout_ms: 0", True),
        ("torchserve: true\nmodel: net.pt", False),
        ("timeout_ms: 0", False),
        ("batchng: {}", False),
        ("batching: {max_delay_ms: 1}", False),
        ("batching: {max_batch_size: 2, max_delay_ms: -1}", False),
        ("batching: off", True),
        ("batching: 'off'", True),
        ("batching: true", False),
        ("retry: 1", False),
        ("instances: true", False),
        ("device: gpu", False),
        ("warmup: []", False),
        ("version_policy: {specific: [1]}", True),
        ("version_policy: newest", False),
        ('inputs: [{name: x, datatype: FP32, shape: [-1, "1:4"]}]', True),
        ("inputs: [{name: x, datatype: FP32, shape: [0]}]", False),
        ("inputs: [{name: x, datatype: float32, shape: [1]}]", False),
        ("inputs: [{name: x, datatype: FP32, shape: [1], image: {reduced: off}}]", True),
        ("outputs: [{name: x, datatype: FP32, shape: [1], image: {resize: area}}]", False),
    ],
)
def test_what_the_server_refuses_is_invalid(schema, text, valid):
    assert fits(yaml.safe_load(text), schema) is valid
