"""A model whose inputs are columns: the page shows one table to fill in, and the answer as a table."""

import pytest

from ksrv.testing import Server
from tests.integration.page.test_page_views import violations
from tests.integration.page.test_results import (
    codes,
    expect,
    open_model,
    run_curl,
    run_python,
    send,
)
from tests.support.clients.browser import watched_page
from tests.support.models import write_model

PEOPLE = """
import numpy as np

from ksrv import Bytes, Float32, Int64


def inference(age: Float32, city: Bytes, rooms: Int64):
    missing = np.isnan(age)
    return {"missing": missing, "score": np.stack([np.nan_to_num(age), rooms], 1).astype(np.float32)}
"""

OUTPUTS = """
outputs:
  - {name: missing, datatype: BOOL, shape: [-1]}
  - {name: score, datatype: FP32, shape: [-1, 2]}
"""


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_model(root, "people", PEOPLE, OUTPUTS)
    with Server(root) as running:
        yield running


@pytest.fixture
def page(browser, people):
    size = {"width": 1000, "height": 900}
    with watched_page(browser, people.url, viewport=size, bypass_csp=True) as opened:
        open_model(opened, "people")
        yield opened


def cells(page, row):
    return [page.get_by_label(f"{name}, row {row}") for name in ("age", "city", "rooms")]


def fill(page, row, *values):
    for cell, value in zip(cells(page, row), values, strict=True):
        cell.fill(value)


def answer_of(page):
    rows = page.get_by_role("region", name="Answer by row").locator("tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_rows_are_filled_in_and_answered_in_a_table(page, tmp_path):
    fill(page, 1, "40.5", "Oslo", "3")
    page.get_by_role("button", name="Add a row").click()
    fill(page, 2, "", 'Ro"me', "4")
    send(page)
    assert answer_of(page) == [["1", "false", "40.5, 3"], ["2", "true", "0, 4"]]
    assert violations(page) == []
    curl, python = codes(page)
    assert run_curl(curl, tmp_path) == {"missing": [False, True], "score": [40.5, 3, 0, 4]}
    assert "missing (2,) [False  True]" in run_python(python, tmp_path)


def test_cells_of_a_spreadsheet_are_pasted(page):
    age = cells(page, 1)[0]
    age.evaluate(
        """(cell, text) => {
          const data = new DataTransfer();
          data.setData("text", text);
          cell.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        }""",
        "20\tOslo\t1\n30\tRome\t2\n",
    )
    send(page)
    assert answer_of(page) == [["1", "false", "20, 1"], ["2", "false", "30, 2"]]


def test_text_for_a_number_marks_the_cell(page):
    fill(page, 1, "forty", "Oslo", "3")
    page.get_by_role("button", name="Send", exact=True).click()
    status = page.locator("form .status").last
    expect(status).to_contain_text("age: expected a number, found 'forty'")
    assert cells(page, 1)[0].get_attribute("aria-invalid") == "true"
    fill(page, 1, "40", "Oslo", "")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(status).to_contain_text("rooms: expected a number, found ''")


def test_kept_request_fills_the_table_again(page):
    fill(page, 1, "40", "Oslo", "3")
    page.get_by_role("button", name="Keep this request").click()
    fill(page, 1, "1", "", "2")
    page.get_by_role("button", name="40, Oslo, 3", exact=True).click()
    assert [cell.input_value() for cell in cells(page, 1)] == ["40", "Oslo", "3"]


def test_rows_are_removed_but_the_last(page):
    page.get_by_role("button", name="Add a row").click()
    page.get_by_role("button", name="Remove a row").click()
    assert page.get_by_label("age, row 2").count() == 0
    expect(page.get_by_role("button", name="Remove a row")).to_be_hidden()
