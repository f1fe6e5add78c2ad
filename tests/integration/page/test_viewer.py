"""The viewer of the OpenAPI document at /docs, with and without Swagger UI, and in a browser."""

import re

import pytest
import requests

from ksrv.server.page import viewer
from ksrv.testing import Server
from tests.support.clients.browser import watched_page
from tests.support.models import write_double

INSTALLED = viewer._swagger_ui() is not None
needs_viewer = pytest.mark.skipif(not INSTALLED, reason="Swagger UI is not installed: extra docs")


@needs_viewer
def test_every_file_that_the_viewer_names_is_served(server):
    page = requests.get(f"{server.url}/docs", timeout=30)
    assert page.headers["Content-Type"].startswith("text/html")
    for name, value in viewer.HEADERS.items():
        assert page.headers[name] == value
    named = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    assert len(named) == 5
    for path in named:
        answer = requests.get(f"{server.url}/{path}", timeout=30)
        assert answer.status_code == 200 and answer.content
    assert "http" not in re.sub(r'"icon" href="[^"]*"', "", page.text.partition("<body>")[2])


def test_without_swagger_ui_a_sentence_says_what_is_missing(tmp_path):
    write_double(tmp_path / "models")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/swagger_ui_bundle.py").write_text("raise ImportError\n")
    hidden = {"PYTHONPATH": str(tmp_path / "hidden")}
    with Server(tmp_path / "models", environment=hidden) as server:
        answer = requests.get(f"{server.url}/docs", timeout=30)
        assert answer.status_code == 404
        assert "pip install swagger-ui-bundle-v2" in answer.json()["error"]
        assert requests.get(f"{server.url}/openapi.json", timeout=30).status_code == 200


def test_no_docs_leaves_the_viewer_out(tmp_path):
    write_double(tmp_path / "models")
    with Server(tmp_path / "models", docs=False) as server:
        answer = requests.get(f"{server.url}/docs", timeout=30)
        assert answer.status_code == 404 and "Swagger" not in answer.text


@needs_viewer
def test_a_request_is_tried_in_a_browser(browser, server):
    with watched_page(browser, server.url) as page:
        page.goto(f"{server.url}/docs")
        page.locator(".opblock-summary", has_text="/v2/models/double/generate").first.click()
        page.get_by_role("button", name="Execute").click()
        answer = page.locator(".live-responses-table")
        answer.get_by_text("model_name").first.wait_for()
        assert answer.locator(".response-col_status").last.inner_text().startswith("200")


@needs_viewer
def test_without_a_token_the_viewer_says_where_to_enter_it(browser, tmp_path):
    write_double(tmp_path / "models")
    (tmp_path / "tokens").write_text("secret\n")
    allowed = ["401"]
    with (
        Server(tmp_path / "models", token_file=str(tmp_path / "tokens")) as server,
        watched_page(browser, server.url, allowed=allowed) as page,
    ):
        page.goto(f"{server.url}/docs")
        page.get_by_text("This server needs a token").wait_for()
        page.evaluate("sessionStorage.setItem('ksrv.token', 'secret')")
        page.reload()
        page.locator(".opblock-summary", has_text="/v2/models/double/infer").first.wait_for()
