"""A client of ModelStreamInfer that leaves while an answer is being sent."""

import contextlib

from ksrv.dialects.triton.extensions.streams import StreamCalls
from ksrv.errors import Cancelled
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse, Tensor


class Handle:
    """A request that runs until it is cancelled."""

    def __init__(self, ended):
        self.cancel = lambda: ended(self)

    def done(self):
        return False

    def wait(self):
        raise Cancelled("the client has left")


class Infer:
    """Reads messages that are the request's id."""

    def read(self, message, call, find):
        return InferRequest(model_name="m", id=message)

    def memory_of(self, call):
        return None


class Engine:
    """Answers every request with a chunk at once, and continues."""

    def find(self, name, version):
        raise NotImplementedError("no request is parsed")

    def submit(self, request, ended, **options):
        request.stream.chunked = True
        request.stream.put(InferResponse("m", "", "", [Tensor("y", "BYTES", (1,), [b"x"])]))
        return Handle(ended)


class Call:
    path, request_id = "/inference.GRPCInferenceService/ModelStreamInfer", "id"

    def metadata(self):
        return {}

    def add_callback(self, callback):
        self.leave = callback


class AtOnce:
    """A pool that reads the whole stream before anything is answered."""

    def submit(self, read, *given):
        read(*given)


def source(is_idle, end):
    return iter([lambda: contextlib.nullcontext("a"), lambda: contextlib.nullcontext("b")])


def test_a_client_that_leaves_while_a_chunk_is_sent_leaves_nothing_to_answer():
    call = Call()
    answers = StreamCalls(Infer(), Engine(), AtOnce()).stream(source, call)
    kind = message_class("inference.ModelStreamInferResponse")
    assert kind.FromString(next(answers)).infer_response.id == "a"
    call.leave()
    (last,) = answers  # of the request that was being answered
    assert b"the client has left" in last
