"""Attacks by JSON: nesting, numbers, counts, types, and texts that would start another line of the log."""

import json
from typing import Any

import pytest
import requests

from ksrv.testing import Server
from tests.advisories.conftest import unharmed
from tests.support.error_texts import check_text

pytestmark = pytest.mark.long

ROW = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
DEEP = "[" * 1_000_000 + "]" * 1_000_000
DEEP_60K = "[" * 60_000  # for routes that take small bodies
NESTED = "CVE-2025-0649 CVE-2024-27454"
OVERFLOW = "triton#8676 CVE-2025-23326"
COUNT = "CVE-2026-34756"
TYPES = "CVE-2025-48944"
EMPTY_INPUT = "CVE-2024-8768"
NAMES = [{"name": f"y{place}"} for place in range(20_000)]


def infer(**changes: Any) -> str:
    return json.dumps({"inputs": [ROW], **changes})


def shaped(*shape: Any, **more: Any) -> str:
    return infer(inputs=[{**ROW, "shape": list(shape), **more}])


def sized_data(size: int) -> str:
    return infer(inputs=[{**ROW, "data": None, "parameters": {"binary_data_size": size}}])


def classes(count: int) -> dict[str, Any]:
    return {"name": "y", "parameters": {"classification": count}}


EMPTY = shaped(1, 8_000_000, 0, datatype="UINT8", data=[])


def wanted(*outputs: dict[str, Any]) -> str:
    return infer(outputs=list(outputs))


DOUBLE = "/v2/models/double/infer"
SIZE = "must be an integer from 0 to 2147483647"
CASES: list[tuple[str, str, str, int, str]] = [
    (NESTED, DOUBLE, DEEP, 400, "--limits-json-depth"),
    (NESTED, DOUBLE, infer()[:-1] + ', "parameters": ' + DEEP, 400, "must be an object"),
    (NESTED, DOUBLE, '{"inputs": [{"name": "x", "data": ' + DEEP, 400, "--limits-json-depth"),
    (NESTED, "/v1/models/double:predict", '{"instances": ' + DEEP, 400, "depth"),
    (NESTED, "/v2/models/double/generate", '{"x": ' + DEEP_60K, 400, "depth"),
    (NESTED, "/v1/embeddings", '{"input": ' + DEEP, 400, "depth"),
    (NESTED, "/v2/repository/models/double/load", '{"parameters": ' + DEEP_60K, 400, "depth"),
    (NESTED, "/v2/logging", '{"a": ' + DEEP_60K, 400, "depth"),
    (OVERFLOW, DOUBLE, shaped(2**32, 2**32), 400, SIZE),
    (OVERFLOW, DOUBLE, shaped(2**64, 4), 400, SIZE),
    (OVERFLOW, DOUBLE, shaped(2**31 - 1, 2**31 - 1), 400, "'x'"),
    (OVERFLOW, DOUBLE, shaped(-1, 4), 400, "is negative"),
    (OVERFLOW, DOUBLE, shaped(1e300, 4), 400, SIZE),
    (OVERFLOW, DOUBLE, sized_data(2**63), 400, "'binary_data_size' must be an unsigned integer"),
    (OVERFLOW, DOUBLE, sized_data(-16), 400, "'binary_data_size' must be an unsigned integer"),
    (OVERFLOW, DOUBLE, infer(parameters={"timeout": 2**64}), 400, "out of range"),
    (OVERFLOW, DOUBLE, shaped(*[1] * 100_000), 400, "more than 32 dimensions"),
    ("CVE-2025-33211", "/v2/models/cached/infer", EMPTY, 400, "may have a product of 65536"),
    ("CVE-2026-24146", DOUBLE, wanted(*NAMES), 400, "more than 256 outputs"),
    (
        "CVE-2026-24146",
        DOUBLE,
        infer(inputs=[ROW | name for name in NAMES]),
        400,
        "more than 256 inputs",
    ),
    (COUNT, DOUBLE, wanted(classes(10**18)), 200, ""),
    (COUNT, DOUBLE, wanted(classes(2**64)), 400, "out of range"),
    (COUNT, DOUBLE, wanted(classes(-1)), 400, "classification"),
    (TYPES, DOUBLE, infer(inputs={"x": 1}), 400, "'inputs' must be an array, not an object"),
    (TYPES, DOUBLE, infer(inputs=[None]), 400, "must be an object, not null"),
    (TYPES, DOUBLE, infer(outputs="y"), 400, "'outputs' must be an array, not a string"),
    (TYPES, DOUBLE, infer(id={"a": 1}), 400, "'id' must be a string, not an object"),
    (TYPES, DOUBLE, infer(parameters={"a": [1]}), 400, "parameter 'a' must be a string"),
    (TYPES, DOUBLE, shaped("1", 4), 400, SIZE),
    (TYPES, DOUBLE, shaped(1, 4, datatype=["FP32"]), 400, "'datatype' must be a string"),
    (TYPES, DOUBLE, shaped(1, 4, data={"b64": "AA=="}), 400, "'data' must be an array"),
    (EMPTY_INPUT, DOUBLE, shaped(0, 4, data=[]), 200, ""),
    (EMPTY_INPUT, "/v2/models/text/infer", shaped(1, datatype="BYTES", data=[""]), 200, ""),
    (EMPTY_INPUT, DOUBLE, infer(inputs=[]), 400, "the input 'x' is missing"),
]


@pytest.mark.parametrize(
    ("number", "path", "body", "status", "said"),
    CASES,
    ids=[f"{number} {place}" for place, (number, *_) in enumerate(CASES)],
)
def test_body_is_answered_and_nobody_else_is_harmed(
    server: Server, number: str, path: str, body: str, status: int, said: str
) -> None:
    with unharmed(server) as answers:
        answer = requests.post(server.url + path, data=body, timeout=60)
        answers.append(answer.text)
        assert answer.status_code == status, answer.text[:500]
        assert said in answer.text
        if status >= 400:
            error = answer.json()["error"]
            check_text(error if isinstance(error, str) else error["message"])
