"""Handler processes that exit, crash, hang, or never get ready; and processes that lie."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent

import numpy as np
import pytest

from ksrv._native import arena
from ksrv.engine.executors import ExecutorDied
from ksrv.engine.executors.process import ProcessExecutor
from ksrv.errors import DeadlineExceeded, HandlerFailed, NotReady
from tests.unit.engine.process_models import batch_of, running, source

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
def ways(tmp_path_factory):
    with running(tmp_path_factory.mktemp("ways"), WAYS) as executor:
        yield executor


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("ksrv.engine.executors.backoff._FIRST_S", 0.0)


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
def test_a_death_is_told_at_once_and_by_its_name(ways, number, reason, caplog):
    if not ways.alive:
        ways.start()
    pid = ways.pid
    with pytest.raises(ExecutorDied, match=reason) as caught:
        ways.run(way(number), None)
    assert str(pid) not in caught.value.message
    assert not ways.alive
    assert any(reason in record.getMessage() for record in caplog.records)
    assert not os.path.exists(f"/proc/{pid}")  # reaped
    with pytest.raises(ExecutorDied):
        ways.run(way(0), None)
    ways.start()
    assert ways.pid not in (0, pid)
    assert (ways.run(way(0), None).tensors[0].data == 0).all()


def test_a_crash_leaves_its_native_traceback_in_the_log(ways, caplog):
    if not ways.alive:
        ways.start()
    with pytest.raises(ExecutorDied):
        ways.run(way(2), None)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "Segmentation fault" in text and "handler.py" in text


@pytest.mark.parametrize("number", [6, 7, 8])
def test_a_hang_ends_at_its_deadline_and_the_process_with_it(ways, number):
    if not ways.alive:
        ways.start()
    pid = ways.pid
    deadline = soon(0.3)
    with pytest.raises(DeadlineExceeded):
        ways.run(way(number), deadline)
    assert time.monotonic_ns() >= deadline
    assert not ways.alive
    assert not os.path.exists(f"/proc/{pid}")
    ways.start()
    assert (ways.run(way(0), soon(60)).tensors[0].data == 0).all()


def test_a_socket_closed_by_the_handler_ends_the_process(ways):
    if not ways.alive:
        ways.start()
    with pytest.raises(ExecutorDied):
        ways.run(way(9), soon(60))
    assert not ways.alive


def test_a_deadline_already_past_costs_nobody_anything(ways):
    if not ways.alive:
        ways.start()
    pid = ways.pid
    with pytest.raises(DeadlineExceeded):
        ways.run(way(0), soon(-1))
    assert ways.pid == pid and ways.alive


def test_a_lack_of_memory_fails_the_batch_and_not_the_process(ways):
    if not ways.alive:
        ways.start()
    pid = ways.pid
    with pytest.raises(HandlerFailed, match="MemoryError"):
        ways.run(way(5), None)
    assert ways.pid == pid
    assert (ways.run(way(0), None).tensors[0].data == 0).all()


def test_a_death_between_batches_is_told(ways):
    if not ways.alive:
        ways.start()
    told = []
    heard = threading.Event()
    ways.on_death(lambda reason: (told.append(reason), heard.set()))
    os.kill(ways.pid, signal.SIGKILL)
    assert heard.wait(30)
    assert "SIGKILL" in told[0]
    assert not ways.alive


def test_a_batch_assembled_while_the_process_is_dead_runs_in_the_next(ways):
    if not ways.alive:
        ways.start()
    early = arena.array(ways.lease(400), "<f4", (1, 100))
    early[...] = 0
    with pytest.raises(ExecutorDied):
        ways.run(way(1), None)
    late = arena.array(ways.lease(400), "<f4", (1, 100))
    late[...] = 0
    ways.start()
    for array in (early, late):
        assert (ways.run(batch_of(array), None).tensors[0].data == 0).all()


def test_a_death_does_not_disturb_answers_given_before(ways):
    if not ways.alive:
        ways.start()
    answer = ways.run(batch_of(np.zeros((1, 300_000), "f4")), None).tensors[0].data
    with pytest.raises(ExecutorDied):
        ways.run(way(1), None)
    assert (answer == 0).all()


def test_no_descriptor_and_no_memory_stays_after_runs_and_crashes(tmp_path):
    def cycle(executor):
        for size in range(10):
            executor.run(batch_of(np.zeros((1, 40_000 * size + 1), "f4")), None)
        with pytest.raises(ExecutorDied):
            executor.run(way(1), None)
        executor.start()

    with running(tmp_path, WAYS) as executor:
        cycle(executor)  # loads what is loaded once
    before, memory = descriptors(), arena.statistics()["leased_bytes"]
    threads = threading.active_count()
    with running(tmp_path, WAYS) as executor:
        for _ in range(20):
            cycle(executor)
        for _ in range(200):
            executor.run(way(0), None)
    assert descriptors() <= before
    assert arena.statistics()["leased_bytes"] == memory
    assert threading.active_count() <= threads + 1  # a watching thread that is about to end


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
def test_a_failed_start_says_why(tmp_path, handler, message, caplog):
    executor = ProcessExecutor(source(tmp_path, handler))
    with pytest.raises(HandlerFailed, match=message):
        executor.start()
    assert not executor.alive
    assert executor.pid == 0
    if "exit" not in handler and "kill" not in handler:
        text = "\n".join(record.getMessage() for record in caplog.records)
        assert "Traceback" in text and "handler.py" in text
    executor.close()


def test_a_start_takes_no_longer_than_it_may(tmp_path):
    executor = ProcessExecutor(source(tmp_path, "time.sleep(600)"), start_timeout_s=1.5)
    with pytest.raises(HandlerFailed, match=r"1\.5 s"):
        executor.start()
    executor.close()


def test_a_start_in_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    model = source(folder, WAYS)
    (folder / "handler.py").unlink()
    folder.rmdir()
    before = descriptors()
    executor = ProcessExecutor(model)
    with pytest.raises(HandlerFailed, match="cannot be started"):
        executor.start()
    executor.close()
    assert descriptors() <= before


def test_close_breaks_off_the_pause_before_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr("ksrv.engine.executors.backoff._FIRST_S", 600.0)
    monkeypatch.setattr("ksrv.engine.executors.backoff.LONGEST_S", 600.0)
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


def test_a_process_ends_with_the_worker_that_is_killed(tmp_path):
    program = f"""
    import os, sys, time
    import numpy as np
    from pathlib import Path
    from threading import Thread
    from tests.unit.engine.process_models import batch_of, source
    from ksrv.engine.executors.process import ProcessExecutor
    executor = ProcessExecutor(source(Path({str(tmp_path)!r}), {WAYS!r}))
    starter = Thread(target=executor.start)  # a thread that ends: its process must not
    starter.start()
    starter.join()
    executor.run(batch_of(np.zeros((1, 1), "f4")), None)
    print(executor.pid, flush=True)
    executor.run(batch_of(np.full((1, 1), 7, "f4")), None)
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", dedent(program)], stdout=subprocess.PIPE, text=True
    )
    pid = int(worker.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    worker.kill()
    worker.wait()
    worker.stdout.close()
    give_up = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


LIES = {
    "a head that is none": "link.channel.send(b'nonsense')",
    "an empty frame": "link.channel.send(b'\\0' * 32)",
    "another batch": "answer(sequence=99)",
    "an unknown block": "answer(records(number=77, nbytes=40, shape=(10,)), names=['y'])",
    "bytes beyond the block": "answer(records(number=own(40), offset=2**40, nbytes=40, shape=(10,)), names=['y'])",
    "an offset that wraps": "answer(records(number=own(40), offset=2**64 - 8, nbytes=40, shape=(10,)), names=['y'])",
    "a shape of another size": "answer(records(number=own(40), nbytes=40, shape=(11,)), names=['y'])",
    "a negative dimension": "answer(records(number=own(40), nbytes=40, shape=(-10,)), names=['y'])",
    "a shape that overflows": "answer(records(number=own(40), nbytes=40, shape=(2**31 - 1,) * 4), names=['y'])",
    "a datatype that is none": "answer(records(code=200, number=own(40), nbytes=40, shape=(10,)), names=['y'])",
    "too many dimensions": "answer(records(number=own(40), nbytes=4, shape=(1,) * 33), names=['y'])",
    "an order that is none": "answer(records(number=own(40), nbytes=40, shape=(2, 5), order=(1, 1)), names=['y'])",
    "an unaligned array": "answer(records(number=own(41), offset=1, nbytes=40, shape=(10,)), names=['y'])",
    "elements without bytes": "answer(records(code=BYTES, elements=4, shape=(4,)), names=['y'])",
    "elements beyond their bytes": "answer(records(code=BYTES, elements=2, number=sizes(8, 2**63), nbytes=24, shape=(2,)), names=['y'])",
    "sizes that wrap": "answer(records(code=BYTES, elements=2, number=sizes(2**64 - 1, 9), nbytes=24, shape=(2,)), names=['y'])",
    "more elements than bytes": "answer(records(code=BYTES, elements=2**40, number=own(40), nbytes=40, shape=(2**20, 2**20)), names=['y'])",
    "more names than tensors": "answer(names=['y'])",
    "records that end too soon": "answer(records(number=own(40), nbytes=40, shape=(10,))[:-1], names=['y'])",
    "more tensors than records": "answer(count=60000)",
    "a failure of a request that is not there": "answer(failures={5: FAULT})",
    "a failure that is a success": "answer(failures={0: dict(FAULT, status=200)})",
    "names that are no strings": "answer(text=b'{\"names\": [1]}')",
    "no JSON": "answer(text=b'{')",
    "deep JSON": "answer(text=b'[' * 50000)",
    "a block given back that never was": "head(returned=[999])",
    "blocks announced without descriptors": "head(announced=[(1, 4096)])",
    "a descriptor that can shrink": "head(announced=[(1, 4096)], fds=[unsealed()])",
    "a descriptor that is a pipe": "head(announced=[(1, 4096)], fds=[os.pipe()[0]])",
    "a block shorter than announced": "head(announced=[(1, 2**20)], fds=[sealed(4096)])",
    "descriptors nobody asked for": "head(fds=[os.pipe()[0]] * 3)",
    "a block announced twice": "head(announced=[(1, 4096), (1, 4096)], fds=[sealed(4096)] * 2)",
    "a payload in no block": "head(flags=1, payload=b'\\x07' + b'\\0' * 15)",
    "a payload of another length": "head(length=5)",
    "a payload without end": "head(flags=1, length=2**62)",
    "a kind that is none": "head(kind=99)",
    "a kind that has no place": "head(kind=16)",
}

LIAR = """
import fcntl, gc, json, os, struct
import numpy as np
from ksrv._native import arena, datatype
from ksrv.engine.executors.kinds import Kind
from ksrv.request import BatchOutputs
from ksrv.spec import ModelSpec

BYTES = datatype.NAMES.index("BYTES")
FAULT = {"kind": "HandlerFailed", "message": "m", "status": 500, "grpc_code": "INTERNAL"}
keep = []

def own(nbytes, fill=0):
    block = link.own.lease(nbytes)
    keep.append(block)
    memoryview(block)[:] = bytes([fill]) * len(block)
    return link.own.number_of(block)

def sizes(*values):
    block = link.own.lease(64)
    keep.append(block)
    memoryview(block)[: 8 * len(values)] = struct.pack(f"<{len(values)}Q", *values)
    return link.own.number_of(block)

def records(code=datatype.NAMES.index("FP32"), elements=0, number=0, offset=0, nbytes=0, shape=(), order=()):
    head = struct.pack("<BBBxxxxxQQQQ", code, len(shape), bool(order), elements, number, offset, nbytes)
    return head + struct.pack(f"<{len(shape)}q", *shape) + bytes(order)

def answer(records=b"", names=(), sequence=1, count=None, text=None, **note):
    text = json.dumps({"names": list(names), **note}).encode() if text is None else text
    count = len(names) if count is None and records else count or 0
    payload = struct.pack("<II", count, len(records)) + records + text
    link.send(Kind.ANSWER, payload, sequence=sequence, blocks=keep)

def head(kind=17, flags=0, announced=(), returned=(), fds=(), payload=b"", length=None):
    message = struct.pack("<4sBBHHHxxxxQQ", b"ksv1", kind, flags, len(announced), len(returned), 0, 1,
        len(payload) if length is None else length)
    for number, size in announced:
        message += struct.pack("<QQ", number, size)
    message += struct.pack(f"<{len(returned)}Q", *returned) + payload
    link.channel.send(message, list(fds))

def unsealed():
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    return fd

def sealed(size):
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd

class Runner:
    def __init__(self, source, *, instance, threads): pass
    def load(self): return ModelSpec("m")
    def close(self): pass
    def run(self, inputs):
        global link
        link = inputs.emit.__self__._link
        exec(open("lie.py").read(), globals())
        return BatchOutputs([])
"""


@pytest.fixture(scope="module")
def liar_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("liar")
    (folder / "liar.py").write_text(LIAR)
    return folder


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_does_not_add_up_ends_the_process(liar_folder, lie):
    (liar_folder / "lie.py").write_text(LIES[lie])
    before = descriptors()
    with running(liar_folder, "", config={"runner": "liar:Runner"}) as executor:
        with pytest.raises(ExecutorDied, match="cannot be read"):
            executor.run(way(0), soon(30))
        assert not executor.alive
    assert descriptors() <= before


def test_the_liar_can_also_tell_the_truth(liar_folder):
    lie = "answer(records(number=own(40, 1), nbytes=40, shape=(5, 2), order=(1, 0)), names=['y'])"
    (liar_folder / "lie.py").write_text(lie)
    with running(liar_folder, "", config={"runner": "liar:Runner"}) as executor:
        answer = executor.run(way(0), soon(30))
        assert answer.tensors[0].shape == (2, 5)
        assert (answer.tensors[0].data.view("u4") == 0x01010101).all()


def test_pauses_between_starts_double_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("ksrv.engine.executors.backoff._FIRST_S", 0.25)
    from ksrv.engine.executors.backoff import Backoff

    backoff = Backoff()
    pauses = []
    for _ in range(12):
        backoff.started()
        pauses.append(backoff.pause())
        backoff.ended()
    assert pauses[:6] == [0.0, 0.0, 0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == 30.0
    monkeypatch.setattr("ksrv.engine.executors.backoff.SOUND_S", 0.0)
    backoff.ended()
    assert backoff.pause() == 0.0


def test_debug_records_come_home_only_when_wanted(tmp_path, caplog):
    handler = """
    import logging
    class H(BaseHandler):
        def handle(self, batch, context):
            logging.getLogger("mine").debug("quiet")
            return {"y": batch["x0"]}
    """
    for level, wanted in ((logging.WARNING, False), (logging.DEBUG, True)):
        caplog.clear()
        caplog.set_level(level, logger="ksrv.handler")
        with running(tmp_path, handler) as executor:
            executor.run(way(0), None)
        assert any("quiet" in record.getMessage() for record in caplog.records) is wanted
