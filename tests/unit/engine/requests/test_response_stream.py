"""The bounded queue between a handler and the client of its stream."""

from ksrv._native.server.response_stream import (
    MOST_BEHIND,
    MOST_BEHIND_BYTES,
    ResponseStream,
)
from ksrv.request import InferResponse, Tensor


def response(nbytes=1):
    return InferResponse("m", "", "", [Tensor("y", "BYTES", (1,), [b"x" * nbytes])])


def test_a_client_is_far_behind_by_answers_or_by_bytes_of_several():
    many = ResponseStream()
    for _ in range(MOST_BEHIND):
        assert not many.is_far_behind()
        many.put(response())
    assert many.is_far_behind()
    many.take()
    assert not many.is_far_behind()
    large = ResponseStream()
    for _ in range(4):
        assert not large.is_far_behind()  # few answers may be larger
        large.put(response(MOST_BEHIND_BYTES))
    assert large.is_far_behind()
    large.end()
    assert not large.is_far_behind()
