"""Which gRPC calls reach their handler without Python, with tensors at any offset in the message."""

import grpc
import numpy as np
import pytest

from tests.support.native.fast_path import JOINED, PAIR, PAIR_YAML, opened_grpc, serving
from tests.support.wire.grpc_calls import UNLIMITED, infer_request, stub_infer

RANDOM = np.random.default_rng(7)


def asked(model, rows, id):
    """Return a call with two raw inputs, and the answer to it."""
    a, b = RANDOM.standard_normal((2, rows, 4), np.float32)
    inputs = [("a", "FP32", [rows, 4]), ("b", "FP32", [rows, 4])]
    request = infer_request(model, *inputs, raw=[a.tobytes(), b.tobytes()], id=id)
    return request, (a + b).tobytes()


@pytest.mark.parametrize(
    "keys", ["", JOINED, "executor: process\n"], ids=["alone", "joined", "process"]
)
def test_small_calls_with_several_raw_inputs_need_no_python_before_their_handler(tmp_path, keys):
    """The first tensor is aligned. The id's length and the rows determine the offset of the second."""
    with (
        serving(tmp_path / "pair", PAIR, PAIR_YAML + keys) as engine,
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address, options=UNLIMITED) as channel,
    ):
        infer = stub_infer(channel)
        calls = [asked("pair", rows, "i" * length) for rows in (1, 2, 3) for length in range(5)]
        waiting = [(infer.future(request, timeout=60), wanted) for request, wanted in calls]
        for call, wanted in waiting:
            assert call.result().raw_output_contents[0] == wanted
        assert server._core.counters()["fast_path"] == len(calls)


@pytest.mark.parametrize(
    ("name", "fast"),
    [("triton_enable_empty_final_response", 1), ("Triton_enable_empty_final_response", 0)],
)
def test_the_parameter_that_perf_analyzer_sends_needs_no_python(tmp_path, name, fast):
    """The parameter concerns responses of a stream, and has no effect on a unary call."""
    with (
        serving(tmp_path / "pair", PAIR, PAIR_YAML) as engine,
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address, options=UNLIMITED) as channel,
    ):
        request, wanted = asked("pair", 1, "")
        request.parameters[name].bool_param = True
        assert stub_infer(channel)(request, timeout=60).raw_output_contents[0] == wanted
        assert server._core.counters()["fast_path"] == fast


def test_a_large_tensor_that_does_not_lie_aligned_is_not_copied_for_the_fast_path(tmp_path):
    with (
        serving(tmp_path / "pair", PAIR, PAIR_YAML) as engine,
        opened_grpc(engine) as (server, address),
        grpc.insecure_channel(address, options=UNLIMITED) as channel,
    ):
        infer, taken = stub_infer(channel), []
        for rows in (
            3,
            (1 << 21) // 16,
        ):  # from 2 MiB on, the bytes of a tensor's length are not a multiple of 4
            before = server._core.counters()["fast_path"]
            request, wanted = asked("pair", rows, "")
            assert infer(request, timeout=60).raw_output_contents[0] == wanted
            taken.append(server._core.counters()["fast_path"] - before)
        assert taken == [1, 0]
