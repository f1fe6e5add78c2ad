"""Retry hints of refused calls: `google.rpc.RetryInfo` and the trailer `retry-after`."""

import grpc
import pytest

from ksrv._native.memory.memory_budget import MemoryBudget
from tests.support.wire.grpc_calls import (
    infer_request,
    retry_seconds,
    row_request,
    running,
    stub_infer,
)

MIB = 1 << 20


def refusal(address, message):
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as told:
        stub_infer(channel)(message, timeout=60)
    return told.value


@pytest.mark.grpcio
def test_full_queue_sends_retry_info(engine):
    with running(engine) as address:
        told = refusal(address, row_request("full"))
    assert told.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_seconds(told) == 1


def test_message_beyond_the_budget_sends_retry_info(engine):
    budget = MemoryBudget(16 * MIB)
    message = infer_request("echo", ("x", "UINT8", [1, 12 * MIB]), raw=[bytes(12 * MIB)])
    assert budget.reserve(8 * MIB)
    with running(engine, budget=budget) as address:
        told = refusal(address, message)
    assert "--limits-in-flight" in told.details()
    assert retry_seconds(told) == 1


def test_client_errors_have_no_retry_info(engine):
    with running(engine) as address:
        told = refusal(address, infer_request("nope"))
    assert told.code() is grpc.StatusCode.NOT_FOUND
    names = {name for name, _ in told.trailing_metadata()}
    assert not names & {"grpc-status-details-bin", "retry-after"}
