"""ModelInfer on grpcio's completion queue: hung handlers, too many calls, and a worker's replacement."""

import importlib
import sys
import threading

import grpc
import numpy as np
import pytest

from ksrv.errors import DeadlineExceeded
from ksrv.server.grpc import completion_queue
from ksrv.server.grpc import server as grpc_server
from ksrv.server.grpc.server import GrpcServer
from ksrv.server.settings import ServerSettings
from tests.support.engine.engine_stand_in import StandInEngine, Ticket
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import call, connect, infer_request, running, stub_infer

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
ADD = infer_request("add", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()], id="7")
ADDED = (ROW + 1).tobytes()


class InlineEngine(StandInEngine):
    """Runs requests on the thread that submits them, as an engine does whose slot is free.

    A request to the model "slow" hangs there, and is ended at its deadline by another thread.
    """

    def __init__(self):
        super().__init__()
        self.hung = []
        self.ran_on = []

    def submit(self, request, callback=None, *, allow_inline=False, caller_blocks=False):
        if not allow_inline:
            return super().submit(request, callback, caller_blocks=caller_blocks)
        ticket = Ticket(request)
        ticket.add_done_callback(callback)
        if request.model_name == "slow":
            self.hung.append(ticket)
            self.release.wait(60)
        else:
            self.ran_on.append(threading.current_thread().name)
            ticket.finish(self._answer(request))
        return ticket


@pytest.fixture
def engine():
    return InlineEngine()


def test_this_release_of_grpcio_has_what_the_direct_way_needs(engine):
    server = GrpcServer(engine, ServerSettings())
    server.start("127.0.0.1:0")
    assert server._direct is not None
    server.stop(5)


@pytest.mark.parametrize("lacking", ["grpc._cython.cygrpc", "NotThere"])
def test_another_release_of_grpcio_serves_the_public_way_and_the_log_says_so(
    engine, monkeypatch, caplog, lacking
):
    if lacking == "NotThere":
        monkeypatch.setattr(completion_queue, "_NAMES", (*completion_queue._NAMES, lacking))
    else:
        for own in ("grpc._channel", "grpc._server"):
            importlib.import_module(own)  # they import it themselves, once they are used
        monkeypatch.delattr("grpc._cython.cygrpc")
        monkeypatch.setitem(sys.modules, "grpc._cython.cygrpc", None)
    with running(engine) as address, connect(address) as channel:
        assert stub_infer(channel)(ADD, timeout=20).raw_output_contents == [ADDED]
    assert f"grpcio lacks {lacking}: ModelInfer takes the slower way" in caplog.text


def test_an_inline_request_is_run_and_answered_on_the_thread_that_leads(engine):
    with running(engine) as address, connect(address) as channel:
        for _ in range(20):
            assert stub_infer(channel)(ADD, timeout=20).raw_output_contents == [ADDED]
    assert len(engine.ran_on) == 20
    assert all(name.startswith("ksrv-grpc-poll") for name in engine.ran_on)


def test_a_hung_handler_is_answered_for_and_others_are_served(engine):
    with running(engine, threads=2) as address, connect(address) as channel:
        futures = [stub_infer(channel).future(infer_request("slow"), timeout=60) for _ in range(2)]
        wait_until(lambda: len(engine.hung) == 2)  # both threads that may run requests hang
        assert stub_infer(channel)(ADD, timeout=60).raw_output_contents == [ADDED]
        for ticket in engine.hung:
            ticket.finish(DeadlineExceeded("the deadline passed while the handler ran"))
        for future in futures:
            with pytest.raises(grpc.RpcError) as caught:
                future.result(60)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert caught.value.details() == "the deadline passed while the handler ran"
        engine.release.set()
        assert stub_infer(channel)(ADD, timeout=60).raw_output_contents == [ADDED]


def test_a_call_too_many_is_refused(engine, monkeypatch):
    monkeypatch.setattr(grpc_server, "MAX_CALLS", 3)
    with running(engine, threads=1) as address, connect(address) as channel:
        futures = []
        for held in range(1, 4):
            futures.append(stub_infer(channel).future(infer_request("slow"), timeout=60))
            wait_until(lambda held=held: len(engine.hung) + len(engine.tickets) == held)
        with pytest.raises(grpc.RpcError) as caught:
            stub_infer(channel)(ADD, timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for ticket in engine.hung:
            ticket.finish(DeadlineExceeded("enough"))
        engine.release.set()
        for future in futures:
            future.exception(60)
        assert stub_infer(channel)(ADD, timeout=60).raw_output_contents == [ADDED]


def test_a_call_without_a_message_is_refused(engine):
    with running(engine) as address, connect(address) as channel:
        stream = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            stream(iter(()), timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_deep_message_is_let_go_and_answered(engine, monkeypatch):
    trimmed = []
    monkeypatch.setattr(completion_queue, "TRIM_FROM", 1 << 20)
    monkeypatch.setattr(completion_queue.buffer_pool, "trim_malloc", lambda: trimmed.append(True))
    array = np.arange(1 << 20, dtype=np.float32)
    request = infer_request("add", ("x", "FP32", [1, 1 << 20]), raw=[array.tobytes()])
    with running(engine) as address, connect(address) as channel:
        for _ in range(2):
            found = stub_infer(channel)(request, timeout=60).raw_output_contents[0]
            assert np.array_equal(np.frombuffer(found, np.float32), array + 1)
        assert len(trimmed) == 2
        assert stub_infer(channel)(ADD, timeout=60).raw_output_contents == [ADDED]
    assert len(trimmed) == 2  # a small message is not worth it


def test_new_connections_go_to_the_replacement_before_a_worker_stops(engine):
    old, new = GrpcServer(engine, ServerSettings()), GrpcServer(engine, ServerSettings())
    try:
        port = old.start("127.0.0.1:0", shared=True)
        address = f"127.0.0.1:{port}"
        with connect(address) as kept:
            assert stub_infer(kept)(ADD, timeout=60).id == "7"
            assert new.start(address, shared=True) == port
            future = stub_infer(kept).future(infer_request("slow", id="kept"), timeout=60)
            wait_until(lambda: engine.hung)
            leaving = threading.Thread(target=old.begin_stop, args=(60,), kwargs={"replaced": True})
            leaving.start()
            leaving.join()
            for _ in range(20):
                with connect(address, **{"grpc.use_local_subchannel_pool": 1}) as fresh:
                    assert call(fresh, "ServerLive").live
                    assert stub_infer(fresh)(ADD, timeout=60).id == "7"
            engine.hung[0].finish(engine._answer(engine.hung[0].request))
            assert future.result(60).id == "kept"
            assert stub_infer(kept)(ADD, timeout=60, wait_for_ready=True).id == "7"
            engine.release.set()
    finally:
        engine.release.set()
        old.stop(5)
        new.stop(5)
