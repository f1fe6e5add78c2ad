"""The states that a handler keeps for sequences."""

import pytest

from ksrv.handlers.sequences import ENDED_EARLY, Sequence, SequenceStates
from ksrv.request import ExecutorInputs, RequestPart, SequenceRequest


def batch_of(*parts):
    requests = [
        RequestPart(slice(place, place + 1), sequence=one) for place, one in enumerate(parts)
    ]
    return ExecutorInputs({}, len(parts), requests)


def run(states, number, *, start=False, end=False):
    failures = {}
    (found,) = states.of_batch(batch_of(SequenceRequest(number, "a", start, end)), failures)
    return found, failures


def test_a_sequence_that_ended_as_its_first_request_began_keeps_no_state():
    states = SequenceStates()
    states.end([7])
    found, failures = run(states, 7, start=True)
    assert found.state == {} and not failures
    assert len(states) == 0


def test_memory_of_ended_sequences_is_limited():
    states = SequenceStates()
    states.end(range(10 * ENDED_EARLY))
    for number in range(10 * ENDED_EARLY):
        run(states, number, start=True)
    assert len(states) == 9 * ENDED_EARLY


def test_state_is_modified_in_place():
    one = Sequence("a", state={"total": 1})
    one.state["total"] += 2
    with pytest.raises(AttributeError, match=r"sequence\.state\['total'\] = "):
        one.state = 3
    assert one.state == {"total": 3}
