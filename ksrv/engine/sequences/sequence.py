"""One open sequence, and the sequence parameters of a request.

`SequenceTable` (`table.py`) owns each `OpenSequence` and changes it under its lock, except `begun`.
"""

from collections.abc import Mapping
from typing import TypeAlias

from ksrv._native.queue.request_handle import SequenceOrder
from ksrv.errors import InvalidRequest, SequenceEnded, quote
from ksrv.request import LARGEST_SEQUENCE_ID, LONGEST_SEQUENCE_ID, Parameter, SequenceRequest

SequenceId: TypeAlias = int | str

PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")


class OpenSequence:
    """A sequence that an instance has state for, or will have.

    Args:
        number: A number that no other sequence of the model has. A client may use an id again; the number is not
            reused.
        slot: The slot of the instance that runs the requests.

    Attributes:
        id: The id that the client chose.
        order: Keeps the requests of the sequence in order, in the native queue.
        requests: How many of its requests have not ended.
        begun: Whether the first request has reached the handler. Set when its batch begins, in
            `ksrv/engine/instances/host.py`.
        last: Whether no further request is accepted.
        ended: The error text of a sequence that ended early, or "".
    """

    __slots__ = ("begun", "ended", "id", "last", "number", "order", "requests")

    def __init__(self, name: SequenceId, number: int, slot: int) -> None:
        self.id = name
        self.number = number
        self.order = SequenceOrder(slot)
        self.requests = 0
        self.begun = False
        self.last = False
        self.ended = ""

    def refusal(self, request: SequenceRequest) -> SequenceEnded | None:
        """Return why a request cannot be run, once the requests before it have ended; else None.

        Args:
            request: The request's sequence parameters.
        """
        if self.ended:
            # A new error for each request, because a raised error refers to its frames, and so to the request.
            return SequenceEnded(self.ended)
        if self.begun or request.start:
            return None
        return SequenceEnded(
            f"the sequence {shown(self.id)} has not begun: its first request was not run; begin it anew with "
            f"'sequence_start'"
        )


def shown(name: SequenceId) -> str:
    """Return the id of a sequence as errors show it."""
    return quote(name) if isinstance(name, str) else str(name)


def read_parameters(
    model: str, parameters: Mapping[str, Parameter]
) -> tuple[SequenceId, bool, bool]:
    """Return the sequence of a request, and whether the request is its first and its last.

    Raises:
        InvalidRequest: The request names no sequence, or a value is not what it must be.
    """
    name, *flags = (parameters.get(key) for key in PARAMETERS)
    if name is None or name == 0 or name == "":
        raise InvalidRequest(
            f"the model {model} serves sequences: a request needs the parameter 'sequence_id', a number above 0 "
            f"or a text of 1 to {LONGEST_SEQUENCE_ID} bytes"
        )
    wrong = ""
    if isinstance(name, str):
        if len(name.encode("utf-8", "surrogatepass")) > LONGEST_SEQUENCE_ID:
            wrong = f"a text of 1 to {LONGEST_SEQUENCE_ID} bytes"
    elif isinstance(name, (bool, float)) or not 0 < name <= LARGEST_SEQUENCE_ID:
        wrong = f"a number from 1 to {LARGEST_SEQUENCE_ID} or a text of 1 to {LONGEST_SEQUENCE_ID} bytes"
    if wrong:
        raise InvalidRequest(f"the request: 'sequence_id' must be {wrong}, not {quote(name)}")
    for key, flag in zip(PARAMETERS[1:], flags, strict=True):
        if not isinstance(flag, bool | None):
            raise InvalidRequest(f"the request: '{key}' must be true or false, not {quote(flag)}")
    assert not isinstance(name, float), "a float is not an id"
    return name, bool(flags[0]), bool(flags[1])
