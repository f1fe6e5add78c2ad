"""The native reader of PROXY headers says what a slow plain-Python one says, of every prefix."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.native.wire_parsers import read_proxy_header
from tests.support.wire import proxy_headers
from tests.support.wire.proxy_headers import SIGNATURE, binary, line

VERSIONS = ("v1", "v2", "auto")
WORDS = st.sampled_from(
    [
        "TCP4", "TCP6", "UNKNOWN", "UDP4", "tcp4", "", "1.2.3.4", "255.255.255.255", "1.2.3", "01.2.3.4", "::1",
        "fe80::1%lo", "1::2::3", "::ffff:1.2.3.4", "0", "1", "65535", "65536", "00", "-1", "+1", "1 ", "x\0",
    ]
)  # fmt: skip


def assert_agreement(data):
    for versions in VERSIONS:
        expected = proxy_headers.read(data, versions)
        found = read_proxy_header(data, versions)
        if expected == "malformed":
            assert isinstance(found, str) and found.startswith("the header"), (data, found)
        else:
            assert found == expected, data


@st.composite
def lines(draw):
    words = ["PROXY", *draw(st.lists(WORDS, max_size=7))]
    end = draw(st.sampled_from(["\r\n", "\r\n", "\n", "\r", ""]))
    return (draw(st.sampled_from([" ", " ", " ", "  ", "\t"])).join(words) + end).encode("latin-1")


@st.composite
def binaries(draw):
    kind = draw(st.sampled_from([0x20, 0x21, 0x21, 0x21, 0x22, 0x11, 0xFF]))
    place = draw(st.sampled_from([0, 0x11, 0x12, 0x21, 0x31, 0x10, 0x41]))
    block = draw(st.binary(max_size=260))
    length = draw(st.sampled_from([len(block), len(block), 12, 36, 216, 4080, 4081, 65535]))
    return SIGNATURE + bytes([kind, place]) + length.to_bytes(2, "big") + block


@examples(400)
@given(st.one_of(lines(), binaries(), st.binary(max_size=40)), st.binary(max_size=8))
def test_every_prefix_gets_the_same_verdict(data, more):
    whole = data + more
    for end in range(len(whole) + 1):
        assert_agreement(whole[:end])


@examples(400)
@given(st.sampled_from([line(), line("::1", "::2"), binary(), binary("::1", "::2", more=b"x" * 9)]),
       st.integers(0, 60), st.integers(0, 255))  # fmt: skip
def test_every_byte_replaced(header, at, byte):
    changed = header[:at] + bytes([byte]) + header[at + 1 :]
    assert_agreement(changed + b"GET / HTTP/1.1\r\n")
