"""Compressed bodies: several members of gzip, and the limits of all members together."""

import gzip
import zlib

import pytest

from ksrv.errors import BodyTooLarge, InvalidRequest
from ksrv.limits import MIB, Limits
from ksrv.server.http.compression import MEMBERS, inflated

EMPTY = gzip.compress(b"", mtime=0)


def read(body, encoding="gzip", step=65_536):
    pieces = (body[start : start + step] for start in range(0, len(body), step))
    return b"".join(inflated(pieces, encoding, Limits()))


@pytest.mark.parametrize("step", [1, 7, 65_536])
def test_members_of_gzip_are_one_body(step):
    assert read(gzip.compress(b"a" * 500) + EMPTY + gzip.compress(b"b"), step=step) == (
        b"a" * 500 + b"b"
    )


@pytest.mark.parametrize("step", [1, 7, 65_536])
@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        (EMPTY + b"x", "gzip", "after the end"),
        (EMPTY + bytes(8), "gzip", "after the end"),
        (zlib.compress(b"") * 2, "deflate", "after the end"),
        (EMPTY + EMPTY[:-1], "gzip", "ends before"),
        (EMPTY + EMPTY[:1], "gzip", "ends before"),
        (EMPTY + EMPTY[:2] + b"x" * 20, "gzip", "corrupt"),
    ],
)
def test_other_bytes_after_a_stream_are_refused(body, encoding, text, step):
    with pytest.raises(InvalidRequest, match=text):
        read(body, encoding, step)


def test_ratio_is_of_all_members_together():
    zeros = gzip.compress(bytes(MIB))
    assert read(zeros) == bytes(MIB)
    with pytest.raises(BodyTooLarge, match="inflate-ratio"):
        read(zeros * 2)


def test_number_of_members_is_limited():
    assert read(EMPTY * MEMBERS) == b""
    with pytest.raises(InvalidRequest, match=f"more than {MEMBERS} members"):
        read(EMPTY * (MEMBERS + 1))
