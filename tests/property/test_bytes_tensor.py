"""The BYTES reader against a slow plain-Python oracle, on built and on mutated buffers."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from ksrv._native.tensor import bytes_tensor
from ksrv._native.tensor.bytes_tensor import ElementsError

SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"BM")
parts = st.lists(
    st.builds(bytes.__add__, st.sampled_from((b"", *SIGNATURES)), st.binary(max_size=40)),
    max_size=6,
)


def prefixed(items):
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def looks_like_image(data):
    return data.startswith(SIGNATURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def walk(data, count):
    found = []
    for _ in range(count):
        if len(data) < 4:
            return None
        (length,) = struct.unpack_from("<I", data)
        if length > len(data) - 4:
            return None
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return None if data else found


def oracle(data, count, sizes, is_image):
    if sizes is not None:
        if len(sizes) != count or sum(sizes) != len(data):
            return None
        found = []
        for size in sizes:
            found.append(data[:size])
            data = data[size:]
        return found
    found = walk(data, count)
    if not is_image or count != 1:
        return found
    if found is not None and (looks_like_image(found[0]) or not looks_like_image(data)):
        return found
    return [data]


def check(data, count, sizes, is_image):
    expected = oracle(data, count, sizes, is_image)
    try:
        got = bytes_tensor.read(data, count, sizes, is_image, "x")
    except ElementsError:
        got = None
    assert got == expected
    assert not is_image or all(isinstance(item, memoryview) for item in got or ())


@given(parts, st.booleans(), st.sampled_from(("prefixed", "bare", "sizes")), st.data())
def test_built_buffers_agree_with_the_oracle(items, is_image, form, data):
    count = len(items) + data.draw(st.sampled_from((0, 0, 0, -1, 1)))
    sizes = tuple(map(len, items)) if form == "sizes" else None
    body = prefixed(items) if form == "prefixed" else b"".join(items)
    check(body, max(count, 0), sizes, is_image)


@given(parts, st.booleans(), st.data())
def test_mutated_buffers_agree_with_the_oracle(items, is_image, data):
    body = bytearray(prefixed(items))
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(body)))
        action = data.draw(st.sampled_from(("flip", "cut", "insert")))
        if action == "flip" and where < len(body):
            body[where] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del body[where:]
        else:
            body[where:where] = data.draw(st.binary(max_size=5))
    check(bytes(body), len(items), None, is_image)


@given(st.lists(st.one_of(st.binary(max_size=50), st.text(max_size=20))))
def test_encoded_items_decode_to_the_same(items):
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    encoded = bytes_tensor.encode(items)
    assert encoded == prefixed(raw)
    assert bytes_tensor.read(encoded, len(items), None, False, "x") == raw
