"""The OpenAPI document matches the routes' answers, and is visible to callers who may list the models."""

import shutil

import pytest
import requests
import schemathesis
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ksrv.testing import Server
from tests.support.models import write_double, write_mean, write_model, write_text
from tests.support.paths import ROOT

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    root = tmp_path_factory.mktemp("openapi")
    for write in (write_double, write_mean, write_text):
        write(root)
    any_inputs = "def handle(batch, context):\n    return {'one': [1]}\n"
    write_model(root, "any", any_inputs, "")
    write_model(
        root,
        "scans",
        any_inputs,
        "inputs: [{name: scan, datatype: FP32, shape: [-1, 8, 8, 1], image: {color: GRAY, formats: [tiff, webp]}}]\n",
    )
    shutil.copytree(ROOT / "examples/sequences/smoother", root / "smoother")
    with Server(root) as server:
        yield server


def document(server, **keywords):
    answer = requests.get(f"{server.url}/openapi.json", timeout=30, **keywords)
    assert answer.status_code == 200, answer.text
    return answer.json()


def operations(server):
    schema = schemathesis.openapi.from_dict(document(server))
    schema.config.update(base_url=server.url)
    return schema


def test_the_models_are_described(described):
    found = document(described)
    infer = found["paths"]["/v2/models/mean/infer"]["post"]["requestBody"]["content"]
    assert set(infer) == {
        "application/json",
        "application/octet-stream",
        "image/jpeg",
        "image/png",
        "multipart/form-data",
    }
    assert set(found["paths"]["/v2/logging"]) == {"get", "post"}
    text = found["paths"]["/v2/models/text/infer"]["post"]
    assert "image/jpeg" not in text["requestBody"]["content"]
    assert "audio/*" in text["responses"]["200"]["content"]


def test_every_accepted_image_format_is_a_media_type(described):
    infer = document(described)["paths"]["/v2/models/scans/infer"]["post"]["requestBody"]
    assert {"image/tiff", "image/webp"} < set(infer["content"])
    assert "image/png" not in infer["content"]


def test_sequence_model_lists_its_parameters(described):
    found = document(described)

    def parameters_of(model):
        infer = found["paths"][f"/v2/models/{model}/infer"]["post"]["requestBody"]["content"]
        schema = infer["application/json"]["schema"]
        parameters = schema["properties"]["parameters"]
        named = parameters.get("$ref", "").rpartition("/")[2]
        return "parameters" in schema["required"], found["components"]["schemas"].get(named, {})

    assert "properties" not in parameters_of("double")[1]
    needed, schema = parameters_of("smoother")
    assert needed and schema["required"] == ["sequence_id"]
    assert set(schema["properties"]) == {"sequence_id", "sequence_start", "sequence_end"}


@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
@pytest.mark.parametrize("model", ["double", "mean", "text", "smoother"])
def test_the_example_is_a_request(described, model, route):
    path = f"/v2/models/{model}/{route}"
    content = document(described)["paths"][path]["post"]["requestBody"]["content"]
    answer = requests.post(
        described.url + path, json=content["application/json"]["example"], timeout=30
    )
    assert answer.status_code == 200, answer.text
    assert '"error"' not in answer.text


def test_the_document_is_valid(described):
    reason = "openapi-spec-validator is not installed: make test-page"
    validator = pytest.importorskip("openapi_spec_validator", reason=reason)
    validator.validate(document(described))


def test_inputs_of_plain_json_have_the_types_of_the_model(described):
    paths = document(described)["paths"]
    content = paths["/v2/models/double/generate"]["post"]["requestBody"]["content"]
    row = content["application/json"]["schema"]["anyOf"][0]["properties"]["x"]["anyOf"][0]
    assert row == {"type": "array", "items": {"type": "number"}}


def test_every_route_answers_as_it_is_described(described):
    for found in operations(described).get_all_operations():
        operation = found.ok()
        if operation.path.startswith("/v2/repository/models"):
            continue  # other tests need the model

        @settings(max_examples=5, deadline=None, derandomize=True, database=None)
        @given(operation.as_strategy())
        def check(case):
            case.call_and_validate(checks=CHECKS)

        check()


def test_document_needs_the_token(tmp_path):
    (tmp_path / "tokens").write_text("secret\n")
    root = write_double(tmp_path / "models").parent
    with Server(root, token_file=str(tmp_path / "tokens"), metrics=False) as server:
        assert requests.get(f"{server.url}/openapi.json", timeout=30).status_code == 401
        found = document(server, headers={"Authorization": "Bearer secret"})
    assert found["security"] == [{"token": []}]
    assert found["paths"]["/v2/health/live"]["get"]["security"] == []
    assert "/metrics" not in found["paths"]
