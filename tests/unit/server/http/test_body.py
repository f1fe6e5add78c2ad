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


@pytest.mark.parametrize("chunked", [False, True])
def test_the_first_tensor_is_aligned(chunked):
    for header in ("0", "1", "63", "64", "117"):
        view = read(b"x" * 5000, chunked=chunked, offset=padding(header))
        assert (address(view) + int(header)) % 64 == 0


@pytest.mark.parametrize("text", [None, "", "-1", "abc", "+5", "1" * 19])
def test_a_header_length_that_is_no_number_needs_no_padding(text):
    assert padding(text) == 0


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


def test_a_small_body_of_zeros_is_no_bomb():
    assert len(read(gzip.compress(bytes(MIB)), encoding="gzip")) == MIB


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
