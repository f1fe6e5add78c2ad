"""Every fault code of the native readers has a complete sentence of limited length."""

import re

import pytest

from ksrv._native.infer.infer_body import BodyError
from ksrv._native.json.number_array import NumbersError
from ksrv.protocol.error_texts import body_fault, numbers_fault
from tests.support.paths import ROOT

BODY = memoryview(b'{"inputs":[] }')


def codes(source, pattern):
    return sorted(set(re.findall(pattern, (ROOT / source).read_text(), re.MULTILINE)))


HEADER_CODES = [
    code.lower() for code in codes("native/infer/infer_header.hpp", r"^    row\((\w+)\)")
]
NUMBERS_CODES = codes("ksrv/_native/json/number_array.pyx", r'^    <int>\w+: "(\w+)",$')


@pytest.mark.parametrize("code", [*HEADER_CODES, "not_bool"])
@pytest.mark.parametrize("place", ["request", "input", "output"])
def test_every_code_has_a_sentence(code, place):
    error = BodyError(code, 3, place, 1, "x" * 5000, "'shape'", "an array", "\x1b" * 5000, 7, 5)
    answer = body_fault(error, BODY)
    assert answer.http_status == 400 and answer.message.isprintable()
    assert len(answer.message) < 600 and not answer.message.endswith(("...", " "))


@pytest.mark.parametrize("code", [*NUMBERS_CODES, "count"])
def test_every_numbers_code_has_a_sentence(code):
    answer = numbers_fault(NumbersError(code, 2, 6), BODY, 1, "x", 3, "INT8", 9)
    assert answer.message.startswith("input 'x' (index 3)")


def fault(code, offset, *, field="", wanted="", received=0):
    return BodyError(code, offset, "request", 0, "", field, wanted, "", 0, received)


def test_faults_at_the_very_end():
    assert "ends inside a value" in body_fault(fault("syntax", len(BODY)), BODY).message
    error = fault("type", len(BODY), field="'id'", wanted="a string")
    assert "ends inside a value at byte 14" in body_fault(error, BODY).message


def test_white_space_before_trailing_bytes_is_not_part_of_the_object():
    answer = body_fault(fault("trailing", 12, received=1), memoryview(b'{"inputs":[]  x'))
    assert "offset 12;" in answer.message
    answer = body_fault(fault("trailing", 14, received=1), memoryview(b'{"inputs":[]} x'))
    assert "offset 13;" in answer.message


@pytest.mark.parametrize(
    ("wrong", "shown"), [("\u201c".encode(), r"'\u201c'"), (b"\xff", r"'\xff'"), (b"x", "'x'")]
)
def test_unexpected_character_is_shown_whole(wrong, shown):
    body = memoryview(b'{"inputs": ' + wrong + b"}")
    assert f"unexpected {shown} at byte 11" in body_fault(fault("syntax", 11), body).message
