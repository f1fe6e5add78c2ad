"""Cross-origin requests of web pages: preflights, and the headers of answers on every way."""

import json

import numpy as np
import pytest
import requests

from ksrv.limits import Limits
from ksrv.server.rest.fast_path import prepared_answers
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.http_reader import double_body

PAGE, OTHER = "http://localhost:3000", "http://elsewhere.example"
TOKEN = {"Authorization": "Bearer secret"}
INFER = "/v2/models/double/infer"
ASK = {"Access-Control-Request-Method": "POST"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("origins")
    (folder / "tokens").write_text("secret\n")
    settings = {"token_file": str(folder / "tokens"), "allowed_origins": [PAGE]}
    with Server(write_double(folder / "models").parent, **settings) as server:
        yield server


def preflight(server, origin, path=INFER, **fields):
    headers = {"Origin": origin, **ASK, **fields}
    return requests.options(server.url + path, headers=headers, timeout=30)


def test_a_preflight_needs_no_token(page):
    asked = {"Access-Control-Request-Headers": "authorization,content-type"}
    answer = preflight(page, PAGE, **asked)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert answer.headers["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    private = preflight(page, PAGE, **{"Access-Control-Request-Private-Network": "true"})
    assert private.headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize(
    "origin", [OTHER, "null", PAGE + "0", PAGE.replace("http", "https"), "*", ""]
)
def test_other_origins_get_no_cors_headers(page, origin):
    """The origin null is CVE-2024-47165."""
    assert preflight(page, origin).status_code == 401
    for path, send in ((INFER, requests.post), ("/v2", requests.get)):
        headers = {"Origin": origin, **TOKEN}
        answer = send(page.url + path, headers=headers, data=double_body(), timeout=30)
        assert answer.status_code == 200
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["Vary"] == "Origin"


def test_names_of_headers_that_are_none_are_not_repeated(page):
    hostile = {"Access-Control-Request-Headers": "x" * 3000}
    assert "Access-Control-Allow-Headers" not in preflight(page, PAGE, **hostile).headers


def test_every_answer_names_the_origin(page):
    origin = {"Origin": PAGE}
    binary = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32"}]}
    header = json.dumps(binary).encode()
    length = {"Inference-Header-Content-Length": str(len(header))}
    block = np.ones(4, np.float32).tobytes()
    for method, path, data, status, fields in [
        ("POST", INFER, double_body(), 200, TOKEN),
        ("POST", INFER, header + block, 200, TOKEN | length),
        ("POST", INFER, double_body(), 401, {}),
        ("POST", INFER, "{", 400, TOKEN),
        ("POST", "/v2/models/none/infer", double_body(), 404, TOKEN),
        ("POST", "/v1/models/double:predict", '{"instances": [[1, 2, 3, 4]]}', 200, TOKEN),
        ("GET", "/v2", None, 200, TOKEN),
        ("GET", "/v2/models/double", None, 200, TOKEN),
        ("GET", "/v2/models/double/ready", None, 200, TOKEN),
        ("GET", "/v2/health/ready", None, 200, {}),
        ("GET", "/v2/health/live", None, 200, {}),
        ("GET", "/metrics", None, 200, TOKEN),
        ("GET", "/nowhere", None, 404, TOKEN),
        ("PUT", "/v2", None, 405, TOKEN),
    ]:
        answer = requests.request(
            method, page.url + path, data=data, headers=origin | fields, timeout=30
        )
        assert answer.status_code == status, (path, answer.text)
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE, path
        assert "Server-Timing" in answer.headers["Access-Control-Expose-Headers"]


def test_requests_of_no_page_stay_on_the_fast_path(page):
    answer = requests.post(page.url + INFER, data=double_body(), headers=TOKEN, timeout=30)
    assert answer.status_code == 200
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_any_origin_may_read_but_only_allowed_origins_may_change(tmp_path):
    root = write_double(tmp_path / "models").parent
    with Server(root, allowed_origins=["*"]) as server:
        assert preflight(server, OTHER).headers["Access-Control-Allow-Origin"] == "*"
        origin = {"Origin": OTHER}
        answer = requests.post(server.url + INFER, data=double_body(), headers=origin, timeout=30)
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        load = f"{server.url}/v2/repository/models/double/load"
        refused = requests.post(load, headers=origin, timeout=30)
        assert refused.status_code == 403
        assert "--allowed-origins" in refused.json()["error"]


def test_without_the_setting_nothing_is_said(server):
    answer = requests.get(server.url + "/v2", headers={"Origin": PAGE}, timeout=30)
    assert not [name for name in answer.headers if name.startswith("Access-Control")]
    assert "Vary" not in answer.headers


def test_refusals_before_the_origin_is_known_are_for_every_page():
    field = b"access-control-allow-origin: *\r\n"
    to_pages = prepared_answers(Limits(), (), to_pages=True)
    open_to = {name for name, (_, _, fields, _) in to_pages.items() if field in fields}
    assert open_to == {"too_slow", "bytes_in_flight", "failed"}
    assert not any(field in fields for _, _, fields, _ in prepared_answers(Limits(), ()).values())
