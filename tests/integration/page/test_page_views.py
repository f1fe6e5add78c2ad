"""The page's views of the server and its models: lost connections, broken models, narrow screens, kept requests.

axe looks for faults of access in every view, in light and dark, at the width of a phone.
"""

import re

import cv2
import numpy as np
import pytest

from ksrv.testing import Server
from tests.integration.page.conftest import BROKEN
from tests.integration.page.test_results import expect, open_model, send, send_file
from tests.support.clients.browser import watched_page
from tests.support.models import DOUBLE, VECTOR, write_model

PHONE = {"width": 360, "height": 740}
LOST = "net::ERR"


def violations(page):
    """axe's findings; each rule with the elements that break it."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="make test-page installs axe"
    )
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(browser, page_server, photograph, scheme):
    looks = {"viewport": PHONE, "color_scheme": scheme, "bypass_csp": True}
    with watched_page(browser, page_server.url, **looks) as page:
        for name in ("classes", "bright", "boxes", "negative", "odd"):
            open_model(page, name)
            send_file(page, photograph)
            assert violations(page) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for name in ("double", "shout", "words", "lengths", "files"):
            open_model(page, name)
            page.get_by_role("button", name="Keep this request").click()
            if name == "words":
                page.get_by_label("show the pieces").check()
                page.get_by_label("Text", exact=True).fill("one two")
            send(page)
            assert violations(page) == [], name
        page.locator('#models a[href="#/broken"]').click()
        expect(page.get_by_role("button", name="Load it again")).to_be_visible()
        assert violations(page) == []


def test_a_stopped_server_is_told_at_once(browser, tmp_path):
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    with Server(tmp_path / "models") as server, watched_page(
        browser, server.url, allowed=[LOST], bypass_csp=True
    ) as page:  # fmt: skip
        open_model(page, "double")
        address = server.http
        server.close()
        expect(page.locator("#trouble")).to_contain_text(f"No connection to {address}")
        expect(page.locator("#models .state")).to_have_text("no connection")
        expect(page.locator("#model .state")).to_have_text("no connection")
        assert violations(page) == []


def test_a_broken_model_says_why_and_is_loaded_again(browser, tmp_path):
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    write_model(tmp_path / "models", "late", BROKEN, VECTOR)
    with Server(tmp_path / "models", ready_when="any") as server, watched_page(
        browser, server.url, allowed=["status of 4", "status of 5"]
    ) as page:  # fmt: skip
        page.locator('#models a[href="#/late"]').click()
        expect(page.locator("#model .trouble")).to_contain_text("is not there")
        again = page.get_by_role("button", name="Load it again")
        again.click()
        expect(page.locator("#model .note[role=status]")).to_contain_text("500: failed to load")
        (tmp_path / "models/late/handler.py").write_text(DOUBLE)
        again.click()
        expect(page.locator("#model h2 .state")).to_have_text("ready")
        send(page)


def test_pieces_are_offered_by_models_that_stream_alone(browser, page_server):
    with watched_page(browser, page_server.url) as page:
        offered = {}
        for name in ("words", "shout", "classes", "lengths"):
            open_model(page, name)
            offered[name] = page.get_by_label("show the pieces").is_visible()
        assert offered == {"words": True, "shout": False, "classes": False, "lengths": False}


def test_the_header_leads_to_the_other_pages(browser, page_server, tmp_path):
    icon = "status of 404"  # what the browser asks for beside a page of plain text
    with watched_page(browser, page_server.url, allowed=[icon]) as page:
        links = page.get_by_role("navigation", name="The server's other pages").get_by_role("link")
        assert [one.get_attribute("href") for one in links.all()] == [
            "docs", "openapi.json", "metrics",
        ]  # fmt: skip
        page.get_by_role("link", name="Metrics").click()
        expect(page.locator("body")).to_contain_text("ksrv_")
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    with Server(tmp_path / "models", docs=False) as server, watched_page(
        browser, server.url
    ) as page:  # fmt: skip
        expect(page.get_by_role("link", name="OpenAPI")).to_be_visible()
        assert page.locator("#docs-link").count() == 0


def test_with_a_token_the_links_work_too(browser, tmp_path):
    write_model(tmp_path / "models", "double", DOUBLE, VECTOR)
    (tmp_path / "tokens").write_text("secret-1\n")
    with Server(tmp_path / "models", token_file=str(tmp_path / "tokens")) as server, watched_page(
        browser, server.url, allowed=["status of 401"]
    ) as page:  # fmt: skip
        page.get_by_role("textbox", name="Token").fill("secret-1")
        page.get_by_role("button", name="Use the token").click()
        page.get_by_role("link", name="Metrics").click()
        expect(page.locator("#model pre")).to_contain_text("ksrv_")
        page.locator('#models a[href="#/double"]').click()
        expect(page.locator("#model h2")).to_contain_text("double")


def test_three_requests_are_kept_and_fill_the_form_again(browser, page_server, photograph):
    with watched_page(browser, page_server.url) as page:
        open_model(page, "double")
        area = page.get_by_label("Numbers in JSON arrays")
        keep = page.get_by_role("button", name="Keep this request")
        for number in (1, 2, 3, 4):
            area.fill(f"[[{number}, 2, 3, 4]]")
            keep.click()
        page.reload()
        expect(page.locator(".kept")).to_have_count(3)
        page.get_by_role("button", name="[[2, 2, 3, 4]]", exact=True).click()
        expect(area).to_have_value("[[2, 2, 3, 4]]")
        page.get_by_role("button", name="Forget [[3, 2, 3, 4]]").click()
        expect(page.locator(".kept")).to_have_count(2)
        open_model(page, "shout")
        assert page.locator(".kept").count() == 0
        page.get_by_label("Text", exact=True).fill("hello\nyou")
        page.get_by_label("each line is a separate row").check()
        keep.click()
        page.get_by_label("Text", exact=True).fill("")
        page.get_by_role("button", name="hello you", exact=True).click()
        expect(page.get_by_label("Text", exact=True)).to_have_value("hello\nyou")
        expect(page.get_by_label("each line is a separate row")).to_be_checked()
        open_model(page, "classes")
        send_file(page, photograph)
        keep.click()
        expect(page.locator(".kept")).to_have_count(1)
        page.reload()
        page.get_by_role("button", name=photograph.name, exact=True).click()
        expect(page.locator(".result h4")).to_have_text(photograph.name)
        open_model(page, "lengths")
        page.get_by_label("Datatype").select_option("INT64")
        page.get_by_label("Numbers in JSON arrays").fill("[[7]]")
        keep.click()
        page.get_by_label("Datatype").select_option("BYTES")
        page.get_by_role("button", name="[[7]]", exact=True).click()
        expect(page.get_by_label("Numbers in JSON arrays")).to_have_value("[[7]]")


def test_what_is_too_large_or_not_ours_is_not_kept(browser, page_server, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (700, 700, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "noise.png"), noise)
    with watched_page(browser, page_server.url) as page:
        open_model(page, "classes")
        send_file(page, tmp_path / "noise.png")
        page.get_by_role("button", name="Keep this request").click()
        expect(page.get_by_text("too large to be kept: at most 1 MiB")).to_be_visible()
        page.evaluate("localStorage.setItem('ksrv.requests.#/double', '{not json')")
        open_model(page, "double")
        assert page.locator(".kept").count() == 0
        send(page)


def test_rows_of_a_batch_stand_side_by_side(browser, page_server, photograph):
    with watched_page(browser, page_server.url, viewport={"width": 1200, "height": 900}) as page:
        open_model(page, "boxes")
        page.locator("input[type=file]").first.set_input_files([str(photograph)] * 3)
        expect(page.locator(".result")).to_have_count(3)
        first, second, third = (one.bounding_box() for one in page.locator(".result").all())
        assert first["y"] == second["y"] and first["x"] < second["x"]
        page.set_viewport_size(PHONE)
        first, second, third = (one.bounding_box() for one in page.locator(".result").all())
        assert first["x"] == second["x"] == third["x"] and first["y"] < second["y"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_phone_shows_the_models_in_one_line_and_no_holes(browser, page_server, photograph):
    with watched_page(browser, page_server.url, viewport=PHONE) as page:
        expect(page.locator('#models a[href="#/broken"]')).to_contain_text("not available")
        open_model(page, "shout")
        assert page.locator("#model h2").bounding_box()["y"] < 250
        box = page.get_by_label("each line is a separate row")
        label = page.get_by_text("each line is a separate row")
        assert abs(box.bounding_box()["y"] - label.bounding_box()["y"]) < 12
        assert box.bounding_box()["x"] < label.bounding_box()["x"]
        open_model(page, "classes")
        assert page.get_by_role("region", name="Inputs and outputs").evaluate(
            "(node) => node.scrollWidth <= node.clientWidth"
        )


def test_the_stages_and_the_network_make_up_the_whole_time(browser, page_server, photograph):
    with watched_page(browser, page_server.url) as page:
        open_model(page, "classes")
        page.locator("input[type=file]").first.set_input_files([str(photograph)] * 2)
        expect(page.locator("form .status")).to_contain_text("answered in")
        cells = page.get_by_role("region", name="Time of each stage").locator("tbody tr td")
        spent = sum(float(text) for text in cells.all_inner_texts()[::2])
        status = page.locator("form .status").inner_text()
        total = float(re.search(r"[\d.]+", status).group())
        assert spent == pytest.approx(total, abs=0.2)
