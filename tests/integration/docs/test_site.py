"""The site of docs/: it is built without a warning, holds every page, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.support.clients.browser import headless_chromium, watched_page
from tests.support.paths import ROOT

ELSEWHERE = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+",
    re.IGNORECASE,
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="MkDocs is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()


def test_the_references_are_made_from_the_code(site):
    settings = (site / "reference/settings.html").read_text()
    assert "--limits-body" in settings and "KSRV_LIMITS__BODY" in settings
    keys = (site / "reference/model-yaml.html").read_text()
    assert "model_layout" in keys and "max_delay_ms" in keys
    api = (site / "reference/api.html").read_text()
    assert all(
        name in api for name in ("BaseHandler", "postprocess", "listening", "InferenceError")
    )
    assert "--find-batching" in (site / "reference/options.html").read_text()


def test_the_figures_have_a_plot_below_each_table_of_ratios(site):
    page = (site / "project/figures.html").read_text()
    assert page.count('<svg viewBox="0 0 800') >= 3


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert ELSEWHERE.findall(page.read_text()) == [], page


def test_pages_load_nothing_from_other_hosts(site):
    handler = partial(Quiet, directory=str(site))
    with headless_chromium() as browser, ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with watched_page(browser, f"http://127.0.0.1:{server.server_address[1]}") as page:
            for name in ("index", "project/figures", "reference/api", "internals/index"):
                page.goto(f"http://127.0.0.1:{server.server_address[1]}/{name}.html")
        server.shutdown()
