"""A handler in a separate process: inputs and answers arrive unchanged."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ksrv._native.memory import buffer_pool
from ksrv.engine.executor import ExecutorDied
from ksrv.engine.processes.process import ProcessExecutor
from ksrv.request import ExecutorInputs, RequestPart, Tensor
from tests.support.engine.process_models import Chunks, batch_of, running, source
from tests.support.wait_until import wait_until

ECHO = """
class Echo(BaseHandler):
    def handle(self, batch, context):
        return {name.replace("x", "y"): batch[name] for name in batch}
"""


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    with running(tmp_path_factory.mktemp("echo"), ECHO) as executor:
        yield executor


def test_any_text_is_valid_in_parameters_headers_ids_and_names(tmp_path):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            request = batch.requests[1]
            shown = repr([dict(request.parameters), dict(request.headers), request.id, batch.rows])
            return [b"", shown]
    """
    parameters = {"i": 2**63, "f": float("inf"), "b": True, "s": "\u00e9", "n": -1}
    headers = {"accept": "\u20ac", "x": "y"}
    array = np.zeros((2, 1), "f4")
    batch = ExecutorInputs(
        {"x\u20ac": Tensor("x\u20ac", "FP32", array.shape, array)},
        2,
        [RequestPart(slice(0, 1)), RequestPart(slice(1, 2), "\u20ac", parameters, headers)],
    )
    with running(tmp_path, handler) as executor:
        (output,) = executor.run(batch, None).tensors
    assert bytes(output.data[1]).decode() == repr([parameters, headers, "\u20ac", 2])


def test_payload_longer_than_the_socket_buffer_arrives(echo):
    array = np.zeros((1, 1), "f4")
    request = RequestPart(slice(0, 1), "i", {"long": "p" * 3_000_000}, {})
    batch = ExecutorInputs({"x0": Tensor("x0", "FP32", (1, 1), array)}, 1, [request])
    for _ in range(3):
        assert np.array_equal(echo.run(batch, None).tensors[0].data, array)


def test_more_tensors_than_descriptors_arrive(tmp_path):
    with running(tmp_path, ECHO) as executor:
        arrays = []
        for place in range(200):
            array = buffer_pool.array(executor.lease(40), "<f4", (1, 10))
            array[...] = place
            arrays.append(array)
        for _ in range(3):
            answer = executor.run(batch_of(*arrays), None)
            for place, tensor in enumerate(answer.tensors):
                assert (tensor.data == place).all()


def test_the_process_has_the_folder_the_environment_and_the_threads(tmp_path):
    handler = """
    import json, sibling
    class H(BaseHandler):
        def handle(self, batch, context):
            return [json.dumps({
                "cwd": os.getcwd(), "path": sys.path[0], "sibling": sibling.VALUE,
                "environment": {key: os.environ.get(key) for key in ("MINE", "OMP_NUM_THREADS")},
                "pid": os.getpid(), "argv": sys.argv,
            })]
    """
    (tmp_path / "sibling.py").write_text("VALUE = 'mine'\n")
    (tmp_path / "logging.py").write_text("raise RuntimeError('shadows the standard library')\n")
    config = {"env": {"MINE": "yes"}}
    with running(tmp_path, handler, config=config, threads=3) as executor:
        (output,) = executor.run(batch_of(np.zeros((1, 1), "f4")), None).tensors
        told = eval(bytes(output.data[0]).decode())
        assert told == {
            "cwd": str(tmp_path),
            "path": str(tmp_path),
            "sibling": "mine",
            "environment": {"MINE": "yes", "OMP_NUM_THREADS": "3"},
            "pid": executor.pid,
            "argv": ["ksrv-handler"],
        }
        assert executor.pid != os.getpid()


def test_processes_exchange_no_pickles(tmp_path):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            import pickle
            def refuse(*_, **__): raise AssertionError("unpickled")
            pickle.loads = pickle.dumps = pickle.load = pickle.dump = refuse
            return {"y": batch["x0"]}
    """
    with running(tmp_path, handler) as executor:
        for _ in range(3):
            executor.run(batch_of(np.zeros((1, 1), "f4")), None)


def test_chunks_after_the_answer_are_dropped(tmp_path):
    handler = """
    import threading
    class H(BaseHandler):
        late = None
        def handle(self, batch, context):
            if self.late is not None:
                self.go.set()
                self.late.join()
                return [str(self.said)]
            self.go = threading.Event()
            def send():
                self.go.wait()
                emit = batch._inputs.emit
                self.said = (batch.listening(), emit.listening(), emit(None))
            self.late = threading.Thread(target=send)
            self.late.start()
            return {"y": batch["x0"]}
    """
    with running(tmp_path, handler) as executor:
        pid = executor.pid
        chunks = Chunks()
        executor.run(batch_of(np.zeros((1, 1), "f4"), emit=chunks), None)
        answer = executor.run(batch_of(np.zeros((1, 1), "f4"), emit=chunks), None)
        assert answer.tensors[0].data == [b"(False, frozenset(), None)"]
        assert (executor.pid, chunks) == (pid, [])


def test_output_reaches_the_log_of_the_worker(tmp_path, caplog):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            print("printed")
            print("to stderr", file=sys.stderr)
            os.write(1, b"no line break")
            return {"y": batch["x0"]}
    """
    caplog.set_level(logging.INFO, logger="ksrv.handler")
    with running(tmp_path, handler, instance=4) as executor:
        pid = executor.pid
        executor.run(batch_of(np.zeros((1, 1), "f4")), None)
    found = {record.getMessage(): record for record in caplog.records}
    label = f"[m/1#4 pid {pid}]"
    assert found[f"{label} printed"].levelno == logging.INFO
    assert found[f"{label} to stderr"].levelno == logging.WARNING
    assert f"{label} no line break" in found


def test_verbose_handler_is_not_blocked_and_its_log_is_limited(tmp_path, caplog):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            for _ in range(30_000):
                print("chatter")
            return {"y": batch["x0"]}
    """
    caplog.set_level(logging.INFO, logger="ksrv.handler")
    with running(tmp_path, handler) as executor:
        executor.run(batch_of(np.zeros((1, 1), "f4")), None)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("chatter" in line for line in lines) < 30_000
    assert any("lines were left out" in line for line in lines)


def test_close_lets_the_handler_clean_up_and_leaves_no_process(tmp_path):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            return {"y": batch["x0"]}
        def close(self):
            open("closed", "w").close()
    """
    executor = ProcessExecutor(source(tmp_path, handler))
    executor.start()
    pid = executor.pid
    executor.close()
    executor.close()
    assert (tmp_path / "closed").exists()
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(ExecutorDied):
        executor.run(batch_of(np.zeros((1, 1), "f4")), None)


def test_close_ends_the_running_batch(tmp_path):
    handler = """
    class H(BaseHandler):
        def handle(self, batch, context):
            open("running", "w").close()
            time.sleep(60)
    """
    with running(tmp_path, handler) as executor, ThreadPoolExecutor(1) as pool:
        ran = pool.submit(executor.run, batch_of(np.zeros((1, 1), "f4")), None)
        wait_until((tmp_path / "running").exists)
        executor.close()
        with pytest.raises(ExecutorDied):
            ran.result(20)
