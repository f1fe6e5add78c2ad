"""The metadata of a gRPC error."""

import pytest
from google.rpc import error_details_pb2, status_pb2

from ksrv.errors import Overloaded, TooManyRequests
from ksrv.server.grpc.calls import error_metadata


@pytest.mark.parametrize("text", ["", "a", "größer", "x" * 2000, "\ud800"])
@pytest.mark.parametrize("seconds", [1, 127, 128, 2**40])
def test_details_have_the_status_and_the_retry_delay(text, seconds):
    error = TooManyRequests(text, "rate_limit", seconds)
    metadata = dict(error_metadata(error))
    assert metadata["retry-after"] == str(seconds)
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (8, error.message.replace("\ud800", "?"))
    [detail] = status.details
    info = error_details_pb2.RetryInfo()
    assert detail.Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (seconds, 0)


def test_every_encoder_writes_the_same_bytes():
    info = error_details_pb2.RetryInfo()
    info.retry_delay.seconds = 1
    status = status_pb2.Status(code=8, message="full")
    status.details.add().Pack(info)
    metadata = dict(error_metadata(Overloaded("full")))
    assert metadata["grpc-status-details-bin"] == status.SerializeToString()
