"""Request parameters: which are reserved, their types, and which reach the handler."""

import time

import pytest

from ksrv.errors import InvalidRequest
from ksrv.protocol.parameters import (
    take_input_parameters,
    take_request_parameters,
    take_requested_outputs,
)
from ksrv.request import SharedMemoryRef

MEMORY = object()
REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
SIZE = "shared_memory_byte_size"
LARGEST = 2**64 - 1


def take_requested_output(name, given):
    (found,) = take_requested_outputs([(name, given)], MEMORY)
    return found


@pytest.mark.parametrize("value", ["", "s", 0, -1, LARGEST, 2**70, 1.5, True, False])
def test_custom_values_reach_the_handler(value):
    for found in (
        take_request_parameters({"mine": value}).custom,
        take_input_parameters("x", 0, {"mine": value})[0],
        take_requested_output("y", {"mine": value}).parameters,
    ):
        assert found == {"mine": value} and type(found["mine"]) is type(value)


@pytest.mark.parametrize(("value", "said"), [(None, "not empty"), ([1], "not "), ({}, "not ")])
def test_custom_values_are_scalars(value, said):
    for take, where in (
        (take_request_parameters, "the request"),
        (lambda given: take_input_parameters("x", 3, given), "input 'x' (index 3)"),
        (lambda given: take_requested_output("y", given), "output 'y' (index 0)"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            take({"mine": value})
        begin = f"{where}: parameter 'mine' must be a string, a number or a boolean, {said}"
        assert str(refused.value).startswith(begin)


@pytest.mark.parametrize(
    ("name", "wrong", "wanted"),
    [
        ("timeout", (-1, LARGEST + 1, 1.0, "1", True), "an unsigned integer"),
        ("priority", (-1, LARGEST + 1, 1.0, "1", True), "an unsigned integer"),
        ("priority", (2**32, LARGEST), "an integer from 0 to 4294967295"),
        ("sequence_id", (-1, LARGEST + 1, 1.0, True), "an unsigned integer"),
        ("sequence_start", (0, 1, "true"), "true or false"),
        ("sequence_end", (0, 1, "true"), "true or false"),
        ("binary_data_output", (0, 1, "true"), "true or false"),
        ("triton_enable_empty_final_response", (0, 1, "true"), "true or false"),
    ],
)
def test_reserved_parameters_of_a_request_have_a_type(name, wrong, wanted):
    for value in wrong:
        with pytest.raises(InvalidRequest, match=f"the request: '{name}' must be {wanted}, not"):
            take_request_parameters({name: value})


def test_reserved_request_parameters_are_read():
    before = time.monotonic_ns()
    found = take_request_parameters(
        {
            "timeout": 5_000_000,
            "priority": 2**32 - 1,
            "binary_data_output": True,
            "sequence_id": LARGEST,
            "sequence_start": True,
            "sequence_end": False,
            "triton_enable_empty_final_response": True,
        }
    )
    assert found.custom == {"sequence_id": LARGEST, "sequence_start": True, "sequence_end": False}
    assert found.deadline_ns is not None and found.deadline_ns >= before + 5 * 10**9
    assert (found.priority, found.binary_output, found.mark_final) == (2**32 - 1, True, True)
    assert take_request_parameters({"timeout": LARGEST}).deadline_ns is not None
    assert take_request_parameters({"timeout": 0}).deadline_ns is None
    assert take_request_parameters({"sequence_id": "a"}).custom == {"sequence_id": "a"}
    assert take_request_parameters({"sequence_id": 0}).custom == {"sequence_id": 0}
    with pytest.raises(InvalidRequest, match="'triton_x' is unknown; names that begin with"):
        take_request_parameters({"triton_x": 1})


@pytest.mark.parametrize(
    ("given", "ref"),
    [
        ({REGION: "r"}, SharedMemoryRef("r", 0, 0)),
        ({SIZE: 4}, SharedMemoryRef("", 0, 4)),
        ({OFFSET: 2}, SharedMemoryRef("", 2, 0)),
        ({REGION: "r", OFFSET: LARGEST, SIZE: LARGEST}, SharedMemoryRef("r", LARGEST, LARGEST)),
        ({"mine": 1, REGION: "r", OFFSET: 2, SIZE: 4}, SharedMemoryRef("r", 2, 4)),
    ],
)
def test_shared_memory_parameters_are_read(given, ref):
    custom = {"mine": 1} if "mine" in given else {}
    assert take_input_parameters("x", 0, given) == (custom, ref)
    output = take_requested_output("y", given)
    assert (output.parameters, output.shared_memory) == (custom, ref)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({REGION: 1}, f"'{REGION}' must be a string, not '1'"),
        ({REGION: "r", OFFSET: -1}, f"'{OFFSET}' must be an unsigned integer, not '-1'"),
        ({REGION: "r", OFFSET: LARGEST + 1}, f"'{OFFSET}' must be an unsigned integer"),
        ({REGION: "r", SIZE: True}, f"'{SIZE}' must be an unsigned integer"),
        ({REGION: "r", SIZE: "4"}, f"'{SIZE}' must be an unsigned integer"),
    ],
)
def test_invalid_shared_memory_parameters_are_refused(given, sentence):
    with pytest.raises(InvalidRequest) as refused:
        take_input_parameters("x", 1, given)
    assert str(refused.value).startswith(f"input 'x' (index 1): {sentence}")
    with pytest.raises(InvalidRequest) as refused:
        take_requested_output("y", given)
    assert str(refused.value).startswith(f"output 'y' (index 0): {sentence}")


def test_reserved_output_parameters_are_read():
    found = take_requested_output("y", {"binary_data": False, "classification": LARGEST, "a": 1})
    assert (found.binary, found.classification, found.parameters) == (False, LARGEST, {"a": 1})
    for given in ({"binary_data": 1}, {"classification": -1}, {"classification": True}):
        with pytest.raises(InvalidRequest, match=r"output 'y' \(index 0\): '[a-z_]+' must be"):
            take_requested_output("y", given)
