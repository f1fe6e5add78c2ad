"""The page behind a token, TLS and a proxy's path; its errors, its keyboard, its colours and widths."""

import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ksrv.testing import Server
from tests.integration.page.conftest import HOSTILE
from tests.integration.page.test_results import expect, open_model, send, send_file
from tests.support.certificates import self_signed
from tests.support.clients.browser import watched_page
from tests.support.models import write_double

UNAUTHORIZED = "the server responded with a status of 401"
REFUSED = "the server responded with a status of 4"


def test_errors_and_names_never_become_markup(browser, page_server):
    with watched_page(browser, page_server.url, allowed=[REFUSED]) as page:
        open_model(page, "shout")
        page.get_by_label("Text", exact=True).fill("fail")
        page.get_by_role("button", name="Send", exact=True).click()
        status = page.locator("form .status")
        expect(status).to_have_text(f"422: no {HOSTILE} today")
        page.locator('#models a[href="#/broken"]').click()
        expect(page.locator("#model .trouble")).to_contain_text(HOSTILE)
        assert page.locator("img").count() == 0
        page.goto(f"{page_server.url}/#/{HOSTILE}")
        expect(page.locator("#model")).to_contain_text("The server has no model")
        assert page.locator("img").count() == 0


def test_a_field_that_cannot_be_sent_says_so_and_takes_the_focus(browser, page_server):
    with watched_page(browser, page_server.url, allowed=[REFUSED]) as page:
        open_model(page, "double")
        area = page.get_by_label("Numbers in JSON arrays")
        button = page.get_by_role("button", name="Send", exact=True)
        for text, sentence in (
            ("[[1, 2", "this is not JSON"), ('["a"]', "expected numbers"),
            ("[[1], [1, 2]]", "one length in each dimension"), ("", "this is not JSON"),
        ):  # fmt: skip
            area.fill(text)
            button.click()
            expect(page.locator("form .status")).to_contain_text(sentence)
            expect(area).to_be_focused()
            assert area.get_attribute("aria-invalid") == "true"
        area.fill("[[1, 2]]")  # the server refuses it
        button.click()
        expect(page.locator("form .status")).to_contain_text("400: ")
        open_model(page, "classes")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("form .status")).to_contain_text("choose a picture first")


def test_what_is_no_picture_is_refused_with_the_servers_sentence(browser, page_server, tmp_path):
    path = tmp_path / "notes.jpg"
    path.write_bytes(b"not a picture")
    with watched_page(browser, page_server.url, allowed=[REFUSED]) as page:
        open_model(page, "classes")
        page.locator("input[type=file]").set_input_files(str(path))
        expect(page.locator("form .status")).to_contain_text(re.compile("400: .*image"))


def test_pictures_are_pasted_and_dropped(browser, page_server, photograph):
    transfer = """(name) => {
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = 40;
        return new Promise((done) => canvas.toBlob((blob) => {
            const files = new DataTransfer();
            files.items.add(new File([blob], "shot.png", {type: "image/png"}));
            const event = name === "paste"
                ? new ClipboardEvent("paste", {clipboardData: files, bubbles: true, cancelable: true})
                : new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true});
            (name === "place" ? document.querySelector(".place") : document.body).dispatchEvent(event);
            done();
        }));
    }"""
    with watched_page(browser, page_server.url) as page:
        for way in ("paste", "drop", "place"):
            open_model(page, "double")
            open_model(page, "classes")
            page.evaluate(transfer, way)
            expect(page.locator("form .status")).to_contain_text("answered in")
            expect(page.locator(".result h4")).to_have_text("shot.png")


def test_a_format_that_the_server_does_not_read_is_converted(browser, page_server, tmp_path):
    import cv2
    import numpy as np

    path = tmp_path / "photo.webp"
    cv2.imwrite(str(path), np.full((20, 20, 3), 200, np.uint8))
    with watched_page(browser, page_server.url) as page:
        open_model(page, "classes")
        send_file(page, path)
        expect(page.locator(".result h4")).to_have_text("photo.png")


def test_the_token_is_asked_for_and_kept_for_the_tab(browser, tmp_path):
    write_double(tmp_path / "models")
    (tmp_path / "tokens").write_text("secret-1\n")
    key, cert = self_signed(tmp_path / "tls")
    with (
        Server(tmp_path / "models", token_file=str(tmp_path / "tokens"), tls_cert=str(cert),
               tls_key=str(key)) as server,
        watched_page(browser, server.url, allowed=[UNAUTHORIZED], ignore_https_errors=True) as page,
    ):  # fmt: skip
        dialog = page.get_by_role("dialog", name="This server needs a token")
        expect(dialog).to_be_visible()
        page.get_by_role("textbox", name="Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("this server needs 'Authorization: Bearer TOKEN'")
        page.get_by_role("textbox", name="Token").fill("secret-1")
        page.get_by_role("button", name="Use the token").click()
        expect(dialog).not_to_be_visible()
        open_model(page, "double")
        send(page)
        curl = page.locator("pre.code").first.inner_text()
        assert "$KSRV_TOKEN" in curl and "secret-1" not in page.content()
        page.reload()
        expect(page.locator("#model h2")).to_contain_text("double")
        page.get_by_role("button", name="Forget the token").click()
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#trouble")).to_contain_text("401: this server needs")


class Prefixed(BaseHTTPRequestHandler):
    """A proxy that serves ksrv below /serving/ksrv."""

    protocol_version = "HTTP/1.1"
    upstream = ""

    def log_message(self, *_):
        pass

    def do_GET(self):
        assert self.path.startswith("/serving/ksrv/"), self.path
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        connection.request(self.command, self.path.removeprefix("/serving/ksrv"), body, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "date", "server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_POST = do_GET


def test_the_page_works_below_a_path_of_a_proxy(browser, page_server):
    Prefixed.upstream = page_server.http
    with ThreadingHTTPServer(("127.0.0.1", 0), Prefixed) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_address[1]}/serving/ksrv"
        with watched_page(browser, url) as page:
            open_model(page, "double")
            send(page)
            assert f"{url}/v2/models/double/infer" in page.locator("pre.code").first.inner_text()
        proxy.shutdown()


def test_the_keyboard_reaches_everything(browser, page_server):
    with watched_page(browser, page_server.url) as page:
        expect(page.locator("#models a").first).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the model")).to_be_focused()
        page.locator('#models a[href="#/double"]').focus()
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_be_focused()
        expect(page.get_by_role("link", name="double")).to_have_attribute("aria-current", "page")
        for name in ("combobox", "textbox"):
            page.keyboard.press("Tab")
            expect(page.get_by_role(name).first).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("form .status")).to_contain_text("answered in")
