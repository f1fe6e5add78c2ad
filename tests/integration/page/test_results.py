"""The page in a headless Chromium: each kind of result, and the code that makes the same request."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.integration.page.conftest import HOSTILE
from tests.support.clients.browser import pixel, watched_page
from tests.support.paths import ROOT


@pytest.fixture
def page(browser, page_server):
    with watched_page(browser, page_server.url, viewport={"width": 1000, "height": 900}) as opened:
        yield opened


def expect(locator):
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=30_000)
    return playwright_expect(locator)


def open_model(page, name):
    page.locator(f'#models a[href="#/{name}"]').click()
    expect(page.locator("#model h2")).to_contain_text(name)
    expect(page.get_by_role("heading", name="Statistics")).to_be_visible()


def send_file(page, path):
    page.locator("input[type=file]").first.set_input_files(str(path))
    expect(page.locator("form .status")).to_contain_text("answered in")


def send(page):
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("form .status")).to_contain_text("answered in")


def codes(page):
    curl, python = page.locator("pre.code").all_inner_texts()
    return curl, python


def run_curl(code, folder):
    done = subprocess.run(["bash", "-ec", code], cwd=folder, capture_output=True, check=True)
    return {output["name"]: output["data"] for output in json.loads(done.stdout)["outputs"]}


def run_python(code, folder):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_picture_gives_the_five_best_classes(page, photograph):
    open_model(page, "classes")
    send_file(page, photograph)
    bars = page.locator(".bars li")
    expect(bars).to_have_count(5)
    found = [(bar.locator(".label").inner_text(), bar.locator(".number").inner_text())
             for bar in bars.all()[:3]]  # fmt: skip
    assert found == [(HOSTILE, "70.0 %"), ("five", "20.0 %"), ("one", "10.0 %")]
    stages = page.get_by_role("region", name="Time of each stage").get_by_role("rowheader")
    assert stages.all_inner_texts() == [
        "queue", "assemble", "preprocess", "inference", "postprocess", "network and browser",
    ]  # fmt: skip
    expect(page.locator(".statistics")).to_contain_text(re.compile(r"requests answered\s*[1-9]"))
    curl, python = codes(page)
    assert run_curl(curl, photograph.parent)["probabilities"][2] == pytest.approx(0.7)
    assert "probabilities (1, 7)" in run_python(python, photograph.parent)


def test_a_mask_lies_over_the_part_of_the_picture_that_the_model_saw(page, photograph):
    open_model(page, "bright")
    send_file(page, photograph)
    canvas = page.get_by_role(
        "img", name=re.compile("Mask of 32 by 32 pixels: ground .* bright area")
    )
    expect(canvas).to_be_visible()
    square, dark, outside = pixel(canvas, 64, 32), pixel(canvas, 40, 10), pixel(canvas, 5, 32)
    assert dark == outside == (20, 20, 20)
    assert max(square) - min(square) > 60  # the mask's colour over the bright square
    page.get_by_role("checkbox", name=re.compile("bright area")).uncheck()
    assert pixel(canvas, 64, 32) == (240, 240, 240)
    page.get_by_role("checkbox", name=re.compile("ground")).check()
    assert pixel(canvas, 40, 10) != (20, 20, 20)
    assert pixel(canvas, 5, 32) == (20, 20, 20)  # cut off by shorter_side
    page.get_by_label("Opacity of the mask").fill("0")
    assert pixel(canvas, 40, 10) == (20, 20, 20)
    page.get_by_label("Show", exact=True).select_option("probability as heat map")
    expect(page.get_by_role("img", name=re.compile("Heat map of 32 by 32"))).to_be_visible()


def test_boxes_are_drawn_where_the_model_found_them(page, photograph):
    open_model(page, "boxes")
    send_file(page, photograph)
    canvas = page.get_by_role("img", name="2 boxes: dog, cat")
    expect(canvas).to_be_visible()
    # 8..24 of 32 columns is 32..96 of 128, 8..24 of 32 rows 16..48 of 64.
    edges = [pixel(canvas, 32, 40), pixel(canvas, 96, 40), pixel(canvas, 64, 48)]
    assert all(max(edge) - min(edge) > 60 for edge in edges)
    assert pixel(canvas, 110, 40) == (20, 20, 20)
    rows = page.get_by_role("region", name="Boxes").locator("tbody tr")
    assert [row.inner_text().split() for row in rows.all()] == [
        ["dog", "0.900", "8", "8", "24", "24"], ["cat", "0.300", "0", "0", "4", "4"],
    ]  # fmt: skip
    page.get_by_label("Least score").fill("50")
    expect(page.get_by_role("img", name="1 box: dog")).to_be_visible()


def test_several_pictures_are_a_batch(page, photograph, tmp_path):
    other = tmp_path / "-other.png"
    other.write_bytes(photograph.read_bytes())
    open_model(page, "classes")
    page.locator("input[type=file]").first.set_input_files([str(photograph), str(other)])
    expect(page.locator(".result")).to_have_count(2)
    assert page.locator(".result h4").all_inner_texts() == [photograph.name, other.name]
    curl, python = codes(page)
    shutil.copy(photograph, tmp_path)
    assert len(run_curl(curl, tmp_path)["probabilities"]) == 14
    assert "probabilities (2, 7)" in run_python(python, tmp_path)


def test_an_output_that_is_a_picture_is_shown(page, photograph):
    open_model(page, "negative")
    send_file(page, photograph)
    canvas = page.get_by_role("img", name="Picture of 32 by 32 pixels")
    assert pixel(canvas, 2, 2) == (235, 235, 235)


def test_numbers_are_written_as_json(page, tmp_path):
    open_model(page, "double")
    area = page.get_by_label("Numbers in JSON arrays")
    assert area.input_value() == "[[0, 0, 0, 0]]"
    area.fill("[1, 2.5, -3, 4]")  # one row
    send(page)
    assert page.locator(".view pre").inner_text().split() == ["2", "5", "-6", "8"]
    curl, python = codes(page)
    assert run_curl(curl, tmp_path) == {"y": [2, 5, -6, 8]}
    assert "y (1, 4)" in run_python(python, tmp_path)


def test_numbers_come_from_npy_files_and_as_zeros(page, tmp_path):
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3, 4], [5, 6, 7, 8]]))
    open_model(page, "double")
    page.get_by_label("Send", exact=True).select_option("a .npy file")
    page.locator("input[type=file]").set_input_files(str(tmp_path / "x.npy"))
    send(page)
    assert page.locator(".view pre").all_inner_texts() == ["2  4  6  8", "10  12  14  16"]
    curl, python = codes(page)
    assert run_curl(curl, tmp_path) == {"y": [2, 4, 6, 8, 10, 12, 14, 16]}
    assert "y (2, 4)" in run_python(python, tmp_path)
    page.get_by_label("Send", exact=True).select_option("zeros")
    page.get_by_label("Shape").fill("3, 4")
    send(page)
    expect(page.locator(".result")).to_have_count(3)
    curl, python = codes(page)
    assert run_curl(curl, tmp_path) == {"y": [0] * 12}
    assert "y (3, 4)" in run_python(python, tmp_path)


def test_half_floats_and_long_integers_are_exact(page):
    open_model(page, "half")
    page.get_by_label("Numbers in JSON arrays").fill("[[1.5, -0.25, 6.1e-5]]")
    send(page)
    shown = page.locator(".view pre").inner_text().split()
    assert [float(one) for one in shown] == pytest.approx(
        [3, -0.5, 2 * float(np.float16(6.1e-5))], rel=1e-5
    )
    curl, _ = codes(page)
    assert "printf '" in curl
    open_model(page, "long")
    page.get_by_label("Numbers in JSON arrays").fill("[[9007199254740993, -9223372036854775808]]")
    send(page)
    assert page.locator(".view pre").inner_text().split() == [
        "9007199254740993", "-9223372036854775808",
    ]  # fmt: skip


def test_texts_are_rows(page, tmp_path):
    open_model(page, "shout")
    page.get_by_label("Text", exact=True).fill('it\'s "ä"\nsecond')
    page.get_by_label("each line is a separate row").check()
    send(page)
    assert page.locator(".view pre").all_inner_texts() == ['IT\'S "Ä"', "SECOND"]
    curl, python = codes(page)
    assert run_curl(curl, tmp_path) == {"loud": ['IT\'S "Ä"', "SECOND"]}
    assert "loud (2,)" in run_python(python, tmp_path)


def test_a_model_without_declared_inputs_takes_what_its_user_names(page, photograph):
    open_model(page, "lengths")
    page.get_by_label("Input's name").fill("anything")
    page.get_by_label("Text", exact=True).fill("four")
    send(page)
    assert page.locator(".view pre").inner_text() == "4"
    page.locator("input[type=file]").set_input_files(str(photograph))
    send(page)
    assert page.locator(".view pre").inner_text() == str(photograph.stat().st_size)
    curl, python = codes(page)
    size = str(photograph.stat().st_size)
    assert list(run_curl(curl, photograph.parent).values()) == [[size]]
    assert "(1,)" in run_python(python, photograph.parent)


def test_the_pieces_of_an_answer_are_shown_as_they_come(page):
    open_model(page, "words")
    page.get_by_label("Text", exact=True).fill("one two three")
    page.get_by_label("show the pieces of the answer as they come").check()
    send(page)
    assert page.get_by_role("log").inner_text().split("<i>") == ["one ", "two ", "three ", ""]
    expect(page.locator("form .status")).to_contain_text("the first piece came after")
    assert "client.stream(" in codes(page)[1]
    assert run_python(codes(page)[1], None).count("\n") == 3
    page.get_by_label("Text", exact=True).fill("one fail")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("form .status")).to_contain_text('<b onclick="alert(1)">no more</b>')
    assert "one" in page.get_by_role("log").inner_text()
    page.get_by_label("show the pieces of the answer as they come").uncheck()
    page.get_by_label("Text", exact=True).fill("one two")
    send(page)
    assert page.locator(".view pre").inner_text() == "one <i>two <i>"


def test_bytes_of_a_stream_that_are_no_text_are_counted(page):
    open_model(page, "words")
    page.get_by_label("Text", exact=True).fill("one binary two")
    page.get_by_label("show the pieces of the answer as they come").check()
    send(page)
    assert page.get_by_role("log").inner_text() == "one <i>2 bytes that are not texttwo <i>"


def test_bytes_of_a_json_answer_are_decoded(page):
    read = page.evaluate(
        """async () => {
            const { readAnswer } = await import("/ui/tensors.js");
            const output = { name: "y", datatype: "BYTES", shape: [3], data: [{ b64: "//4=" }, { b64: "" }, "h\u00e9" ] };
            const answer = new TextEncoder().encode(JSON.stringify({ outputs: [output] }));
            return readAnswer(answer.buffer, null).outputs[0].values.map((value) => Array.from(value));
        }"""
    )
    assert read == [[255, 254], [], [*"h\u00e9".encode()]]


def test_files_are_played_shown_and_saved(page, tmp_path):
    open_model(page, "files")
    page.get_by_label("Text", exact=True).fill("one")
    send(page)
    sound = page.locator("audio")
    page.wait_for_function("document.querySelector('audio').readyState >= 1")
    assert sound.evaluate("one => one.duration") == 1.0
    page.get_by_label("Show", exact=True).select_option("picture as file")
    page.wait_for_function("document.querySelector('.view img').complete")
    size = "one => [one.naturalWidth, one.naturalHeight]"
    assert page.locator(".view img").evaluate(size) == [16, 8]
    page.get_by_label("Show", exact=True).select_option("table as file")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save table.csv (3 bytes)").click()
    saved.value.save_as(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_bytes() == b"a,b"


def test_odd_answers_are_shown_in_every_view(page, photograph):
    open_model(page, "odd")
    send_file(page, photograph)
    expect(page.get_by_role("img", name="0 boxes: ")).to_be_visible()
    choice = page.get_by_label("Show", exact=True)
    titles = choice.locator("option").all_inner_texts()
    assert {"boxes", "plane as heat map", "weird as numbers", "bytes as text"} <= set(titles)
    for title in titles:
        choice.select_option(title)
        assert page.locator(".view .trouble").count() == 0, title
        if title == "weird as numbers":
            assert page.locator(".view pre").inner_text() == "NaN  Infinity  -Infinity  NaN"
        if title == "bytes as text":
            assert page.locator(".view pre").inner_text() == "2 bytes that are not text"
