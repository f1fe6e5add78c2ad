"""Handler processes that exit, crash, hang or never start, and processes that send wrong data."""

import errno
import gc
import os
import re
import resource
import shutil
import threading
import time

import numpy as np
import pytest

from ksrv.engine.executor import ExecutorDied
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.errors import DeadlineExceeded, HandlerFailed, NotReady
from ksrv.limits import Limits
from tests.support.engine.process_models import Chunks, batch_of, running, source
from tests.support.wait_until import wait_until

WAYS = """
import ctypes
class H(BaseHandler):
    def handle(self, batch, context):
        way = int(batch["x0"][0, 0])
        if way == 1: os._exit(3)
        if way == 2: ctypes.string_at(0)
        if way == 3: os.kill(os.getpid(), signal.SIGKILL)
        if way == 4: os.abort()
        if way == 5: raise MemoryError
        if way == 6: time.sleep(600)
        if way == 7:
            while True: pass
        if way == 8:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if way == 9: os.closerange(3, 200); time.sleep(600)
        if way == 10:
            if os.fork() == 0:  # a child of the handler's that keeps the socket open
                time.sleep(600)
            os._exit(5)
        return {"y": batch["x0"]}
"""


def way(number: int):
    return batch_of(np.full((1, 1), number, "f4"))


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    with running(tmp_path_factory.mktemp("ways"), WAYS) as executor:
        yield executor


@pytest.fixture
def ways(one_process):
    one_process.start()  # replace a process that an earlier test ended
    return one_process


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("ksrv.engine.processes.backoff._FIRST_S", 0.0)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (1, "exit status 3"),
        (2, "SIGSEGV"),
        (3, "SIGKILL"),
        (4, "SIGABRT"),
        (10, "exit status 5"),
    ],
)
def test_death_is_reported_at_once_with_its_signal(ways, number, reason, caplog):
    pid = ways.pid
    with pytest.raises(ExecutorDied, match=reason) as caught:
        ways.run(way(number), None)
    assert str(pid) not in caught.value.message
    assert any(reason in record.getMessage() for record in caplog.records)
    if reason == "SIGSEGV":
        assert "Segmentation fault" in caplog.text and "handler.py" in caplog.text
    assert not os.path.exists(f"/proc/{pid}")  # reaped
    ways.start()
    assert ways.pid not in (0, pid)
    assert (ways.run(way(0), None).tensors[0].data == 0).all()


@pytest.mark.parametrize("number", [6, 7, 8])
def test_hanging_process_is_killed_at_the_deadline(ways, number):
    pid = ways.pid
    seconds = 0.3
    while ways.alive:  # a deadline that passes before the handler runs does not end the process
        deadline = soon(seconds)
        with pytest.raises(DeadlineExceeded):
            ways.run(way(number), deadline)
        assert time.monotonic_ns() >= deadline
        seconds *= 2
        assert seconds < 30
    assert not os.path.exists(f"/proc/{pid}")
    ways.start()
    assert (ways.run(way(0), soon(60)).tensors[0].data == 0).all()


def test_a_socket_closed_by_the_handler_ends_the_process(ways):
    pid = ways.pid
    with pytest.raises(ExecutorDied):
        ways.run(way(9), soon(60))
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("raise ValueError('mine')", "ValueError: mine"),
        (
            "class H(BaseHandler):\n    def initialize(self, c): raise OSError('no weights')",
            "no weights",
        ),
        ("os._exit(7)", "exit status 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("class H(BaseHandler:", "SyntaxError"),
    ],
)
def test_failed_start_reports_the_cause(tmp_path, handler, message, caplog):
    executor = ProcessExecutor(source(tmp_path, handler))
    with pytest.raises(HandlerFailed, match=message):
        executor.start()
    assert not executor.alive
    assert executor.pid == 0
    if "exit" not in handler and "kill" not in handler:
        text = "\n".join(record.exc_text or "" for record in caplog.records)
        assert "Traceback" in text and "handler.py" in text
    executor.close()


def test_a_start_without_descriptors_fails_and_a_later_one_does_not(tmp_path):
    """A failed start is retried; an error of the system used to end the instance for good."""
    executor = ProcessExecutor(source(tmp_path, WAYS))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(1000) if not os.path.lexists(f"/proc/self/fd/{number}")]
    for left in range(8):  # a start needs this many descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[left], most[1]))
        try:
            with pytest.raises(HandlerFailed, match=r"cannot be started: .*Too many open files"):
                executor.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
    try:
        executor.start()
    finally:
        executor.close()


@pytest.mark.parametrize("way", ["environment", "folder", "pidfd", "thread"])
def test_any_failed_start_is_reported_without_a_hang(tmp_path, monkeypatch, way):
    executor = ProcessExecutor(
        source(tmp_path, WAYS, env={"A": "\ud800"} if way == "environment" else {})
    )
    if way == "folder":
        shutil.rmtree(tmp_path)
    before = descriptors()

    def refuses(_):
        if way == "pidfd":
            raise OSError(errno.EMFILE, "Too many open files")
        raise RuntimeError("can't start new thread")

    if way == "pidfd":
        monkeypatch.setattr("os.pidfd_open", refuses)
    if way == "thread":
        monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(HandlerFailed, match="cannot be started"):
        executor.start()
    executor.close()
    assert descriptors() <= before


def test_close_interrupts_the_pause_before_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr("ksrv.engine.processes.backoff._FIRST_S", 600.0)
    monkeypatch.setattr("ksrv.engine.processes.backoff.LONGEST_S", 600.0)
    executor = ProcessExecutor(source(tmp_path, "raise ValueError"))
    for _ in range(2):
        with pytest.raises(HandlerFailed):
            executor.start()
    errors = []

    def start():
        try:
            executor.start()
        except NotReady as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    executor.close()
    thread.join(30)
    assert len(errors) == 1


def test_inconsistent_answer_ends_the_process(tmp_path):
    (tmp_path / "liar.py").write_text(
        "from ksrv.engine.processes.link import Packed\n"
        "from ksrv.engine.processes.messages import MessageType\n"
        "from ksrv.model.spec import ModelSpec\n"
        "class Runner:\n"
        "    def __init__(self, source, **_): pass\n"
        "    def load(self): return ModelSpec('m')\n"
        "    def close(self): pass\n"
        "    def serve(self, receive): receive()\n"
        "    def run(self, inputs):\n"
        "        number = int(inputs.tensors['x0'].data[0, 0])\n"
        "        inputs.emit.answers.link.send(MessageType.ANSWER, Packed(b'nonsense'), batch_number=number)\n"
    )
    with running(tmp_path, "", config={"runner": "liar:Runner"}) as executor:
        for number in (1, 99):  # a malformed answer, and an answer to another batch
            executor.start()
            pid = executor.pid
            # A batch with an emitter, through which the handler finds its link.
            inputs = way(number)
            inputs.emit = Chunks()
            with pytest.raises(ExecutorDied, match="cannot be read"):
                executor.run(inputs, soon(30))
            assert not os.path.exists(f"/proc/{pid}")


EVENTS = """
import logging
from ksrv.engine.processes import messages
class H(BaseHandler):
    def handle(self, batch, context):
        way = int(batch["x0"][0, 0])
        link = context.metrics._emit.__self__._link
        if way == 1:
            for _ in range(50): link.send(99)
        if way == 2: link.send(32, messages.dump(messages.LogMessage("x", 20, "a" * (1 << 20))))
        if way == 3: context.metrics._report("fallen", "counter", -5.0, {})
        if way == 4:
            for _ in range(30): logging.getLogger("mine").warning("\U0001f600" * 65_536)
        if way == 5: logging.getLogger("mine").warning("said")
        if way == 6:
            metrics = type(context.metrics)("other", "7", context.metrics._emit)
            metrics.counter("forged", 5.0, kind="mine")
            metrics._labels = (("kind", "x"),)
            metrics.counter("bare")
        return {"y": batch["x0"]}
"""


@pytest.mark.parametrize(
    ("number", "why"), [(1, "99 is not an event"), (2, "1048576 are allowed"), (3, "cannot fall")]
)
def test_inconsistent_events_stop_the_reader(tmp_path, caplog, number, why):
    reported = []
    with running(tmp_path, EVENTS, emit=reported.append) as executor:
        pid = executor.pid
        executor.run(way(number), soon(60))
        executor.run(way(5), soon(60))
        assert executor.pid == pid
    told = [one.getMessage() for one in caplog.records if one.name != "mine"]
    assert len([one for one in told if "events are no longer read" in one and why in one]) == 1
    assert len(told) == 1, told
    assert reported == []


def test_a_process_reports_metrics_for_its_own_model_alone(tmp_path):
    reported = []
    with running(tmp_path, EVENTS, emit=reported.append) as executor:
        executor.run(way(6), soon(60))
        wait_until(lambda: len(reported) == 2)
        own = (("model", executor.source.name), ("version", executor.source.version))
    assert [one.labels for one in reported] == [(*own, ("kind", "mine")), own]


def test_long_log_records_are_read(tmp_path, caplog):
    with running(tmp_path, EVENTS) as executor:
        executor.run(way(4), soon(60))
        executor.run(way(5), soon(60))
    told = [one.getMessage() for one in caplog.records]
    assert "\U0001f600" * 1000 in told[0]
    assert not any("no longer read" in one for one in told)


LARGE = """
class H(BaseHandler):
    def handle(self, batch, context):
        if len(batch["x0"]) > 1:
            batch._inputs.emit.answers.link.most_sent = 1 << 40  # what no handler does
        return {"y": np.zeros((len(batch["x0"]), int(batch["x0"][0, 0])), "f4")}
"""


def test_an_answer_beyond_the_limits_fails_its_batch_and_ends_a_process_that_sends_it(tmp_path):
    limits = Limits(body=1 << 20, in_flight=1 << 20)
    with running(tmp_path, LARGE, limits=limits) as executor:
        pid = executor.pid
        assert executor.run(way(1 << 18), soon(30)).tensors[0].nbytes == 1 << 20
        with pytest.raises(HandlerFailed, match=r"1048580 bytes; .* at most 1048576"):
            executor.run(way((1 << 18) + 1), soon(30))
        assert executor.pid == pid
        hostile = batch_of(np.full((2, 1), 1 << 18, "f4"))
        hostile.emit = Chunks()
        with pytest.raises(ExecutorDied, match="cannot be read"):
            executor.run(hostile, soon(30))
        assert not os.path.exists(f"/proc/{pid}")


MESSAGES = """
TEXTS = np.full((1, 1 << 19), b"x", object)  # with the sizes of its elements more than 1 MiB

class H(BaseHandler):
    def handle(self, batch, context):
        way = batch["x0"][0, 0]
        if way == 1: return {"y": TEXTS}
        if way == 2: batch.set_parameter(0, "p", "x" * (1 << 20))
        if way > 2: return {"y": np.array([self.told(int(way))], object)}
        return {"y": batch["x0"]}

    def told(self, way):
        asked = {3: np.zeros((1, 1), "f4"), 4: np.zeros((1, 1 << 19), "f4"), 5: TEXTS}
        parameters = {"p": "x" * (1 << 20)} if way == 6 else {}
        try:
            self.context.models["other"].infer({"x": asked.get(way, TEXTS[:, :1])}, parameters=parameters)
        except Exception as error:
            return f"{type(error).__name__}: {error}".encode()
"""
MANY = """
class H(BaseHandler):
    def handle(self, batch, context):
        x = batch["x0"]
        many = {f"n{number}": x for number in range(65_537)}
        if x[0, 0] == 1: return many
        if x[0, 0] == 2:
            try:
                self.context.models["other"].infer(many)
            except Exception as error:
                return {"y": np.array([str(error).encode()], object)}
        return {"y": x}
"""
TOO_MANY = "65537 tensors are too many for a handler process"


def test_too_many_output_tensors_fail_only_the_batch(tmp_path):
    with running(tmp_path, MANY) as executor:
        pid = executor.pid
        with pytest.raises(HandlerFailed, match=TOO_MANY):
            executor.run(way(1), soon(60))
        (told,) = executor.run(way(2), soon(60)).tensors
        assert TOO_MANY in told.data[0].decode()
        with pytest.raises(HandlerFailed, match=TOO_MANY):
            executor.run(batch_of(*[np.zeros((1, 1), "f4")] * 65_537), soon(60))
        assert executor.run(way(3), soon(60)).tensors[0].data[0, 0] == 3
        assert executor.pid == pid


TOO_LARGE = r"has \d{7} bytes; a message has at most 1048576, the larger of --limits-body and --limits-in-flight"


def test_handler_error_names_the_exceeded_limit_and_the_process_lives(tmp_path):
    limits = Limits(body=1 << 20, in_flight=1 << 20)
    with running(tmp_path, MESSAGES, limits=limits) as executor:
        pid = executor.pid
        for answer in (1, 2):
            with pytest.raises(HandlerFailed, match=f"the handler's answer {TOO_LARGE}"):
                executor.run(way(answer), soon(30))
        told = {3: "outside of a server", 4: TOO_LARGE, 5: TOO_LARGE, 6: TOO_LARGE}
        for call, text in told.items():
            (output,) = executor.run(way(call), soon(30)).tensors
            assert re.search(f"^HandlerFailed: .* {text}", output.data[0].decode()), call
        assert executor.pid == pid


def test_pauses_between_starts_double_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("ksrv.engine.processes.backoff._FIRST_S", 0.25)
    from ksrv.engine.processes.backoff import Backoff

    backoff = Backoff()
    pauses = []
    for _ in range(12):
        backoff.started()
        pauses.append(backoff.pause())
        backoff.ended()
    assert pauses[:6] == [0.0, 0.0, 0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == 30.0
    backoff.started()
    backoff.served()
    backoff.ended()
    assert backoff.pause() == 0.0
    backoff.started()
    backoff.ended()
    assert backoff.pause() == 0.25
    monkeypatch.setattr("ksrv.engine.processes.backoff.SOUND_S", 0.0)
    backoff.ended()
    assert backoff.pause() == 0.0
