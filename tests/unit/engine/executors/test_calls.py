"""The worker's end of a handler process's calls: messages that do not add up."""

from types import SimpleNamespace

import pytest

from ksrv._native.ipc.channel import ChannelError
from ksrv.engine.executors import messages
from ksrv.engine.executors.calls import HandlerCalls
from ksrv.engine.executors.messages import MessageType, NumbersMessage, WaitMessage
from ksrv.handlers.models import refuse_calls


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        (MessageType.LOOK, NumbersMessage([1])),
        (MessageType.LOOK, NumbersMessage([-1, 2**70])),
        (MessageType.WAIT, WaitMessage(1)),
        (MessageType.WAIT, WaitMessage(1, cancel=True)),
    ],
)
def test_a_process_cannot_ask_about_calls_that_it_did_not_make(kind, note):
    payload, lenient = messages.dump(note)
    frame = SimpleNamespace(kind=kind, payload=payload, lenient=lenient, batch_number=1)
    with pytest.raises(ChannelError):
        HandlerCalls(refuse_calls).take(None, frame)
