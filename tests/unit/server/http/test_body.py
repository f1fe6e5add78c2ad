import gzip
import io
import random
import zlib

import pytest

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import BodyTooLarge, InvalidRequest, Overloaded, UnsupportedEncoding
from ksrv.limits import Limits
from ksrv.server.http.body import padding, read_body
from ksrv.server.http.byte_budget import Reservation

MIB = 1024 * 1024


class Trickle(io.BytesIO):
    """A stream that gives at most `most` bytes a read."""

    def __init__(self, content, most):
        super().__init__(content)
        self.most = most

    def read(self, size=-1):
        return super().read(self.most if size < 0 else min(size, self.most))


def read(content, *, length=None, chunked=False, encoding=None, limits=None, most=7000, **more):
    environ = {"wsgi.input": Trickle(content, most)}
    if chunked:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    else:
        environ["CONTENT_LENGTH"] = str(len(content) if length is None else length)
    if encoding is not None:
        environ["HTTP_CONTENT_ENCODING"] = encoding
    with Reservation(more.pop("budget", MemoryBudget(64 * MIB))) as reservation:
        return read_body(environ, limits or Limits(), reservation, **more)


def address(view):
    import numpy as np

    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("size", [0, 1, 6999, 7000, 7001, 3 * MIB])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_arrives_whole_and_alone(size, chunked):
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    view = read(content, chunked=chunked)
    assert view.nbytes == size and bytes(view) == content
    assert not view.readonly


@pytest.mark.parametrize("chunked", [False, True])
def test_the_first_tensor_is_aligned(chunked):
    for header in ("0", "1", "63", "64", "117"):
        view = read(b"x" * 5000, chunked=chunked, offset=padding(header))
        assert (address(view) + int(header)) % 64 == 0


@pytest.mark.parametrize("text", [None, "", "-1", "abc", "+5", "1" * 19])
def test_a_header_length_that_is_no_number_needs_no_padding(text):
    assert padding(text) == 0


def test_a_length_above_the_limit_is_refused_before_anything_is_read():
    limits = Limits(body=100)
    assert len(read(b"x" * 100, limits=limits)) == 100
    with pytest.raises(BodyTooLarge, match="101 bytes, above the limit --limits-body \\(100 bytes"):
        read(b"never read", length=101, limits=limits)


def test_a_chunked_body_above_the_limit_is_refused():
    limits = Limits(body=10_000)
    assert len(read(b"x" * 10_000, chunked=True, limits=limits)) == 10_000
    with pytest.raises(BodyTooLarge, match="10000"):
        read(b"x" * 10_001, chunked=True, limits=limits)


def test_a_body_that_ends_early_names_both_numbers():
    with pytest.raises(InvalidRequest, match="after 10 of the 20 bytes"):
        read(b"x" * 10, length=20)
    with pytest.raises(InvalidRequest, match="after 10 of the 20 bytes"):
        read(gzip.compress(b"x" * 10)[:10], length=20, encoding="gzip")


def test_no_length_and_no_chunks_is_an_empty_body():
    environ = {"wsgi.input": Trickle(b"not ours", 8)}
    with Reservation(MemoryBudget(MIB)) as reservation:
        assert bytes(read_body(environ, Limits(), reservation)) == b""


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("GZIP ", gzip.compress), ("deflate", zlib.compress)],
)
def test_compressed_bodies_are_inflated(encoding, compress, chunked):
    content = random.Random(1).randbytes(300_000) + bytes(2000)
    view = read(compress(content), encoding=encoding, chunked=chunked, offset=padding("7"))
    assert bytes(view) == content
    assert (address(view) + 7) % 64 == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"not gzip", "corrupt"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-4], "ends before"),
        (gzip.compress(b"x" * 1000, mtime=0) + b"more", "continues after"),
        (b"", "ends before"),
    ],
)
def test_a_corrupt_stream_is_the_clients_mistake(content, text):
    with pytest.raises(InvalidRequest, match=text):
        read(content, encoding="gzip")


def test_a_bomb_is_refused_by_its_ratio_and_by_its_size():
    bomb = gzip.compress(bytes(50 * MIB))
    with pytest.raises(BodyTooLarge, match="--limits-inflate-ratio"):
        read(bomb, encoding="gzip")
    limits = Limits(body=2 * MIB, inflate_ratio=10_000)
    with pytest.raises(BodyTooLarge, match="limit --limits-body"):
        read(bomb, encoding="gzip", limits=limits)
    assert len(read(gzip.compress(bytes(2 * MIB)), encoding="gzip", limits=limits)) == 2 * MIB


def test_a_small_body_of_zeros_is_no_bomb():
    assert len(read(gzip.compress(bytes(MIB)), encoding="gzip")) == MIB


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
def test_other_encodings_are_unsupported(encoding):
    with pytest.raises(UnsupportedEncoding) as caught:
        read(b"", encoding=encoding)
    assert len(caught.value.message) < 200


def test_inflating_can_be_switched_off():
    with pytest.raises(UnsupportedEncoding, match="identity only"):
        read(gzip.compress(b"x"), encoding="gzip", decompress=False)
    assert bytes(read(b"x", encoding="identity", decompress=False)) == b"x"


@pytest.mark.parametrize("chunked", [False, True])
def test_the_bytes_in_flight_are_bounded_and_given_back(chunked):
    budget = MemoryBudget(MIB)
    with pytest.raises(BodyTooLarge, match="limit --limits-in-flight \\(1048576 bytes"):
        read(b"x" * (MIB + 1), chunked=chunked, budget=budget)
    assert budget.reserve(MIB // 2)
    with pytest.raises(Overloaded, match="limit --limits-in-flight \\(1048576 bytes") as caught:
        read(b"x" * (MIB - 1), chunked=chunked, budget=budget)
    assert caught.value.retry_after
    budget.give_back(MIB // 2)
    assert budget.held == 0
    read(b"x" * MIB, budget=budget)
    assert budget.held == 0


def test_an_error_of_the_wsgi_input_is_the_clients_mistake():
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError("reset")

    environ = {"wsgi.input": Broken(), "CONTENT_LENGTH": "5"}
    budget = MemoryBudget(MIB)
    with (
        Reservation(budget) as reservation,
        pytest.raises(InvalidRequest, match="cannot be read: reset"),
    ):
        read_body(environ, Limits(), reservation)
    assert budget.held == 0
