"""The worker's side of the calls to other models that the batches of one handler process make.

A call is submitted when it arrives, and the thread that ends the called request sends its result. Every CALL gets one
RESULT, even if it was cancelled. `child.calls` is the side of the process.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ksrv._native.server.response_stream import ResponseStream
from ksrv.engine.processes import messages
from ksrv.engine.processes.link import ChannelClosed, ChannelError, Frame, Link, Packed
from ksrv.engine.processes.messages import MOST_CALLS, MessageType
from ksrv.engine.processes.run import Run
from ksrv.errors import HandlerFailed, KsrvError, Overloaded
from ksrv.handlers.models import Submit
from ksrv.request import ExecutorOutputs, InferResponse, RequestHandle

log = logging.getLogger("ksrv.engine")

LOST = "the result of the call is lost"


@dataclass(eq=False)
class ProcessCalls:
    """The calls of one process.

    Args:
        submit_request: Submits requests to other models.
    """

    link: Link
    submit_request: Submit
    _open: set[int] = field(default_factory=set)  # the numbers of the calls without a result

    def submit(self, run: Run, frame: Frame) -> None:
        """Submit the request of a CALL to its model."""
        number, request, is_streamed = messages.unpack_call(frame)
        if is_streamed:
            request.stream = stream = ResponseStream(
                lambda: self._hand_on(run.number, number, stream)
            )
        if number in self._open:
            raise ChannelError(f"it made call {number} twice")
        # `waiting`: the link keeps messages, because the socket had no room. Results among them were not taken.
        not_taken = self.link.waiting and self.link.count(MessageType.RESULT)
        if len(self._open) + not_taken >= MOST_CALLS:
            raise ChannelError(f"it made more than {MOST_CALLS} calls without taking their results")
        try:
            pending = self.submit_request(request, run.caller())
        except KsrvError as error:
            run.rest()
            self.send_result(run.number, number, error)
            return
        self._open.add(number)
        run.calls[number] = pending
        pending.add_done_callback(partial(self._end, run, number))

    def _end(self, run: Run, number: int, ended: RequestHandle) -> None:
        """Send the result of a call. Runs on the thread that ended the called request."""
        del run.calls[number]
        run.rest()
        outcome: InferResponse | KsrvError
        try:
            outcome = ended.wait()
        except KsrvError as error:
            outcome = error
        # It must not end the thread, which belongs to the called model.
        except BaseException as error:
            log.error("the result of a call between models is lost", exc_info=error)
            outcome = HandlerFailed(LOST)
        self._open.discard(number)
        self.send_result(run.number, number, outcome)

    def _hand_on(self, batch_number: int, number: int, stream: ResponseStream) -> None:
        """Send the intermediate answers to a call that have arrived, without limit: the handler keeps them."""
        for response in stream.take_all(0):
            self.send_result(batch_number, number, response, MessageType.CALL_CHUNK)

    def send_result(
        self,
        batch_number: int,
        number: int,
        outcome: InferResponse | KsrvError,
        kind: MessageType = MessageType.RESULT,
    ) -> None:
        """Send the result of a call, or an intermediate result. It is kept if the socket has no room."""
        try:
            packed, nbytes = self._pack(number, outcome)
        except KsrvError as error:
            # Without the traceback, whose frames would keep the result in memory.
            failed = ExecutorOutputs([], {0: error.with_traceback(None)})
            packed, nbytes = messages.pack_answer(failed, self.link, number), 0
        with suppress(ChannelClosed):  # the receiving thread ends the batch
            self.link.send(kind, packed, batch_number=batch_number, nbytes=nbytes)

    def _pack(self, number: int, outcome: InferResponse | KsrvError) -> tuple[Packed, int]:
        """Return a result and its bytes. Raises the error that is sent in place of a result."""
        if isinstance(outcome, KsrvError):
            raise outcome
        nbytes = sum(tensor.nbytes for tensor in outcome.outputs)
        kept, most = self.link.kept_bytes, self.link.most_received
        if kept and kept + nbytes > most:
            raise Overloaded(
                f"the results of calls that the handler has not taken have {kept} bytes, and this result has "
                f"{nbytes}; together they have at most {most}, the larger of --limits-body and "
                f"--limits-in-flight. Take results before you make further calls"
            )
        parameters = {0: dict(outcome.parameters)} if outcome.parameters else None
        answer = ExecutorOutputs(outcome.outputs, parameters=parameters)
        try:
            return messages.pack_answer(answer, self.link, number), nbytes
        except KsrvError:
            raise
        except MemoryError as error:
            raise Overloaded(str(error), "memory") from error
        except Exception as error:
            log.error("the result of a call between models is lost", exc_info=error)
            raise HandlerFailed(LOST) from error
