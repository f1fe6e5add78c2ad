"""A headless Chromium, driven by Playwright, that notes what a page must not do."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

OWN_WARNINGS = ("willReadFrequently",)
"""Of the tests' own reading of pixels."""

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def headless_chromium() -> Iterator[Any]:
    """Start the browser; skip the test if no browser is installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is missing (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class Watch:
    """Forbidden acts of a page."""

    url: str
    faults: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def attach(self, page: Any) -> None:
        """Note what the page does from now on."""
        page.on("console", lambda message: self._console(message))
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(
            text in message.text for text in (*self.allowed, *OWN_WARNINGS)
        ):
            self.faults.append(f"console: {message.text}")

    def _request(self, url: str) -> None:
        if not url.removeprefix("blob:").startswith(self.url):
            self.faults.append(f"request: {url}")


@contextmanager
def watched_page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """Open a page at a URL; fail at the end if it did anything forbidden."""
    watch = Watch(url + "/", allowed=options.pop("allowed", []))
    context = browser.new_context(**options)
    context.set_default_timeout(30_000)
    page = context.new_page()
    watch.attach(page)
    page.goto(url + "/")
    yield page
    context.close()
    assert not watch.faults, watch.faults


def pixel(canvas: Any, x: int, y: int) -> tuple[int, int, int]:
    """Return red, green and blue of one pixel of a canvas."""
    found = canvas.evaluate(
        "(canvas, [x, y]) => Array.from(canvas.getContext('2d').getImageData(x, y, 1, 1).data)",
        [x, y],
    )
    return tuple(found[:3])
