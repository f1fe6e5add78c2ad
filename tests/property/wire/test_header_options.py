"""The reader of a header's options against falcon's on sane values, and in the number of its steps."""

import pytest
from falcon import parse_header
from hypothesis import given
from hypothesis import strategies as st

from ksrv.errors import InvalidRequest
from ksrv.protocol.forms import multipart
from ksrv.protocol.forms.multipart import (
    MAX_FIELD_BYTES,
    header_options,
    media_type,
    read_multipart,
)

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9*_-]{0,8}", fullmatch=True)
TOKENS = st.from_regex(r"[A-Za-z0-9!#$&'*+.^_`|~%/-]{0,12}", fullmatch=True)
TEXTS = st.text(
    st.characters(exclude_characters="\\", exclude_categories=("Cs", "Cc")), max_size=12
)
BLANKS = st.sampled_from(["", " ", "\t", "  "])
OPTIONS = st.builds(
    lambda before, after, name, value: f"{before};{after}{name}={value}",
    BLANKS,
    BLANKS,
    NAMES,
    TOKENS | TEXTS.map(lambda text: '"' + text.replace('"', '\\"') + '"'),
)


@given(
    kind=st.sampled_from(["form-data", "multipart/form-data", "Image/JPEG", ""]),
    options=st.lists(OPTIONS, max_size=5),
    end=st.sampled_from(["", ";", " ; "]),
)
def test_ordinary_values_are_read_as_falcon_does(kind, options, end):
    value = kind + "".join(options) + end
    expected_kind, expected = parse_header(value)
    assert media_type(value) == expected_kind.lower()
    assert header_options(value) == expected


@given(st.text(alphabet='a=;"\\ \t\n', max_size=24))
def test_any_value_is_read_or_refused(value):
    try:
        options = header_options(value)
    except InvalidRequest:
        return
    assert all(name and name == name.lower() for name in options)


@pytest.mark.parametrize(
    "value",
    [
        'form-data; name="' + ";" * 200_000,
        'form-data; name="' + "\\" * 200_001,
        "form-data" + ";" * 200_000 + '"',
        "form-data; " + "a" * 200_000,
        "form-data; a" + " " * 200_000 + "b",
        'form-data; name="a"b',
    ],
    ids=["semicolons", "backslashes", "empty options", "no value", "blanks", "text after a quote"],
)
def test_hostile_value_is_read_in_linear_time(monkeypatch, value):
    """A pattern that takes quadratic time would run into the time limit of the tests."""
    read = []

    class Counting:
        def match(self, text, at):
            found = OPTION.match(text, at)
            read.append(found.end() - at if found else len(text) - at)
            return found

    OPTION = multipart._OPTION
    monkeypatch.setattr(multipart, "_OPTION", Counting())
    with pytest.raises(InvalidRequest, match="malformed"):
        header_options(value)
    assert sum(read) <= len(value)


@pytest.mark.parametrize(
    "before",
    [b"Content-Disposition:", b'Content-Disposition: form-data; name="a"\r\ncontent-type:'],
)
def test_long_fields_of_a_part_are_refused(before):
    def form(value):
        head = before + value
        return memoryview(b"--B\r\n" + head + b"\r\n\r\n1\r\n--B--")

    good = b'form-data; name="a"; x="%s"'
    room = MAX_FIELD_BYTES - len(good % b"")
    assert len(read_multipart(form(good % (b";" * room)), "B")) == 1
    with pytest.raises(
        InvalidRequest, match=f"of {MAX_FIELD_BYTES + 1} bytes; at most {MAX_FIELD_BYTES}"
    ):
        read_multipart(form(good % (b";" * (room + 1))), "B")
