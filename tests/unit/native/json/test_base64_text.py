"""Base64 text: only the standard alphabet is accepted; compared with Python's decoder."""

import base64
import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.json.base64_text import Base64Error, decode


@given(st.binary(max_size=200))
def test_round_trip_preserves_bytes(data):
    text = base64.b64encode(data)
    assert decode(text) == decode(text.decode()) == decode(memoryview(text)) == data


@given(st.text("AZaz09+/=- \n*", max_size=24))
def test_only_canonical_text_is_accepted(text):
    try:
        wanted = base64.b64decode(text, validate=True)
    except binascii.Error:
        wanted = None
    if wanted is not None and base64.b64encode(wanted).decode() == text:
        assert decode(text) == wanted
    else:
        with pytest.raises(Base64Error):
            decode(text)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 11, 12, 13, 47, 48, 49, 100_000, 100_001])
def test_every_position_is_checked(length):
    data = bytes(range(256)) * (length // 256 + 1)
    text = bytearray(base64.b64encode(data[:length]))
    assert decode(text) == data[:length]
    for place in {0, 1, len(text) // 2, len(text) - 5, len(text) - 1} & set(range(len(text))):
        kept, text[place] = text[place], ord("*")
        with pytest.raises(Base64Error, match=f"characters {place // 4 * 4} to"):
            decode(text)
        text[place] = kept
