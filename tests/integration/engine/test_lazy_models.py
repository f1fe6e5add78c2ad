"""`--model-control lazy`: models are loaded by their first request, and put away when memory is short."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.client import Client, StatusError
from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.paths import ROOT
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.long

HEAVY = """
import numpy as np
from ksrv import BaseHandler, Float32


class Heavy(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.weights = np.full(MIB << 17, VALUE)  # pages that are written are in memory

    def inference(self, x: Float32[1]) -> Float32[1]:
        return x + np.float32(self.weights[-1])
"""

MIB = 1 << 20

DOCUMENTED = re.compile(r"^ksrv serve models/ --model-control (\w+) --models-memory (\w+)$", re.M)


def write(folder, count, mib, yaml="warmup: false\n"):
    for number in range(count):
        source = HEAVY.replace("MIB", str(mib)).replace("VALUE", str(float(number)))
        write_model(folder, f"m{number}", source, yaml)


def metric(server, name):
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found, f"{name} is missing"
    return float(found[1])


def states(server):
    index = requests.post(f"{server.url}/v2/repository/index", json={}, timeout=60).json()
    return {one["name"]: (one["state"], one.get("reason", "")) for one in index}


def ask(client, number):
    answer = client.infer(f"m{number}", {"x": np.float32([[1]])})
    return float(answer["output"][0, 0])


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_model_is_loaded_by_its_first_request(tmp_path, executor):
    write(tmp_path, 2, 1, f"warmup: false\nexecutor: {executor}\n")
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        assert states(server) == dict.fromkeys(("m0", "m1"), ("UNAVAILABLE", "not loaded"))
        assert requests.get(f"{server.url}/v2/health/ready", timeout=60).status_code == 200
        told = requests.get(f"{server.url}/v2/models/m1/ready", timeout=60)
        assert told.status_code == 503
        assert requests.get(f"{server.url}/openapi.json", timeout=60).status_code == 200
        assert requests.get(f"{server.url}/v2/models/m1/stats", timeout=60).status_code == 200
        assert states(server)["m1"] == ("UNAVAILABLE", "not loaded")  # a look loads nothing

        assert ask(client, 1) == 2.0
        assert states(server)["m1"][0] == "READY"
        assert states(server)["m0"] == ("UNAVAILABLE", "not loaded")
        assert metric(server, "ksrv_lazy_loads_total") == 1
        assert metric(server, "ksrv_models_loaded") == 1


def test_calls_over_grpc_load_models_too(tmp_path):
    write(tmp_path, 3, 1)
    x = triton.InferInput("x", [1, 1], "FP32")
    x.set_data_from_numpy(np.float32([[1]]))
    with Server(tmp_path, model_control="lazy") as server:
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.is_server_ready()
            assert not client.is_model_ready("m2")
            assert client.infer("m2", [x]).as_numpy("output")[0, 0] == 3
            assert client.is_model_ready("m2")
            answers = []
            client.start_stream(lambda result, error: answers.append((result, error)))
            client.async_stream_infer("m0", [x])
            wait_until(lambda: answers)
            client.stop_stream()
        assert answers[0][0].as_numpy("output")[0, 0] == 1


def test_requests_that_come_together_share_one_load(tmp_path):
    write(tmp_path, 1, 1)
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(lambda _: ask(client, 0), range(24))) == {1.0}
        assert metric(server, "ksrv_lazy_loads_total") == 1


@pytest.mark.differs_in_processes("processes leave room for fewer models than clients")
def test_memory_pressure_unloads_least_recently_used_without_failures(tmp_path):
    count = 24
    write(tmp_path, count, 24)
    settings = {"model_control": "lazy", "models_memory": "200M"}
    draw = random.Random(5)
    weights = [1 / (rank + 1) for rank in range(count)]
    numbers = draw.choices(range(count), weights, k=300)
    with Server(tmp_path, **settings) as server, Client(server.url) as client:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: ask(client, number), numbers))
        assert answers == [number + 1.0 for number in numbers]
        assert metric(server, "ksrv_models_put_away_total") > 0
        # One model may be coming for each client while the others hold what is allowed.
        assert metric(server, "ksrv_models_memory_bytes") < (200 + 8 * 24) * MIB
        loads = metric(server, "ksrv_lazy_loads_total")
        assert ask(client, numbers[-1]) == numbers[-1] + 1.0
        assert (
            metric(server, "ksrv_lazy_loads_total") == loads
        )  # the model used last is still there
        page = requests.get(f"{server.url}/metrics", timeout=60).text
        served = re.findall(r'ksrv_requests_total\{model="m0",outcome="success".*\} (\S+)', page)
        assert not served or float(served[0]) == numbers.count(0) + (numbers[-1] == 0)


def test_a_model_with_a_request_is_not_put_away(tmp_path):
    slow = (
        HEAVY.replace("MIB", "64")
        .replace("VALUE", "7.0")
        .replace("        return x", "        import time\n        time.sleep(2)\n        return x")
    )
    write_model(tmp_path, "slow", slow, "warmup: false\n")
    write(tmp_path, 4, 64)
    with (
        Server(tmp_path, model_control="lazy", models_memory="100M") as server,
        Client(server.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(client.infer, "slow", {"x": np.float32([[1]])})
        wait_until(lambda: states(server)["slow"][0] == "READY")
        assert [ask(client, number) for number in range(4)] == [1.0, 2.0, 3.0, 4.0]
        assert answer.result()["output"][0, 0] == 8


def test_failed_load_fails_its_requests_and_is_retried(tmp_path):
    broken = tmp_path / "m0" / "handler.py"
    write(tmp_path, 1, 1)
    good = broken.read_text()
    broken.write_text(good.replace("import numpy", "import nonumpy"))
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        with pytest.raises(StatusError, match="nonumpy") as caught:
            ask(client, 0)
        assert caught.value.status == 503
        assert "nonumpy" in states(server)["m0"][1]
        broken.write_text(good)
        client.load("m0")
        assert ask(client, 0) == 1.0


def test_model_that_was_put_away_is_loaded_from_the_same_files(tmp_path):
    write(tmp_path, 3, 64)
    with (
        Server(tmp_path, model_control="lazy", models_memory="80M") as server,
        Client(server.url) as client,
    ):
        assert ask(client, 0) == 1.0
        handler = tmp_path / "m0" / "handler.py"
        handler.write_text(handler.read_text().replace("return x +", "return x + 100 +"))
        assert [ask(client, 1), ask(client, 2)] == [2.0, 3.0]
        assert states(server)["m0"] == ("UNAVAILABLE", "not loaded")
        assert ask(client, 0) == 1.0  # nobody has loaded the new code
        client.load("m0")
        assert ask(client, 0) == 101.0


def test_metadata_call_loads_a_dormant_model(tmp_path):
    write(tmp_path, 6, 1)
    with Server(tmp_path, model_control="lazy") as server, ThreadPoolExecutor(6) as pool:
        asked = [f"{server.url}/v2/models/m{number}" for number in range(6)]
        statuses = list(pool.map(lambda url: requests.get(url, timeout=60).status_code, asked))
        assert statuses == [200] * 6
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.get_model_metadata("m1").name == "m1"
            assert client.get_model_config("m0").config.name == "m0"


def test_unloaded_on_purpose_stays_unloaded(tmp_path):
    write(tmp_path, 1, 1)
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        client.unload("m0")
        with pytest.raises(StatusError, match="unloaded"):
            ask(client, 0)
        client.load("m0")
        assert ask(client, 0) == 1.0


def test_model_may_call_a_dormant_model(tmp_path):
    write(tmp_path, 1, 1)
    caller = """
from ksrv import BaseHandler, Float32


class Caller(BaseHandler):
    def inference(self, x: Float32[1]) -> Float32[1]:
        return self.context.models["m0"].infer({"x": x})["output"] + 10
"""
    write_model(tmp_path, "caller", caller, "executor: process\n")
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        answer = client.infer("caller", {"x": np.float32([[1]])})
        assert answer["output"][0, 0] == 11


CALLER = """
import numpy as np
from ksrv import BaseHandler, Float32


class Caller(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.weights = np.full(64 << 17, 1.0)

    async def inference(self, x: Float32[1]) -> Float32[1]:
        if x[0, 0] == 5:
            return x
        return (await self.context.models["m0"].submit({"x": x}))["output"] + 10
"""
GATED = (
    HEAVY.replace("MIB", "64")
    .replace("VALUE", "0.0")
    .replace(
        "self.weights =",
        """from pathlib import Path
        import time
        (Path(__file__).parent / "begun").touch()
        while not (Path(__file__).parent / "go").exists():
            time.sleep(0.01)
        self.weights =""",
    )
)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_call_that_waits_for_a_load_keeps_no_other_batch_waiting(tmp_path, executor):
    write_model(tmp_path, "m0", GATED, "warmup: false\n")
    write_model(tmp_path, "caller", CALLER, f"executor: {executor}\nwarmup: false\n")
    with (
        Server(tmp_path, model_control="lazy") as server,
        Client(server.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        assert client.infer("caller", {"x": np.float32([[5]])})["output"][0, 0] == 5
        waits = pool.submit(client.infer, "caller", {"x": np.float32([[1]])})
        wait_until((tmp_path / "m0" / "begun").exists)
        try:
            assert client.infer("caller", {"x": np.float32([[5]])})["output"][0, 0] == 5
            assert not waits.done()
        finally:
            (tmp_path / "m0" / "go").touch()
        assert waits.result()["output"][0, 0] == 11


def test_a_call_is_given_up_at_its_deadline_while_its_model_is_loaded(tmp_path):
    write_model(tmp_path, "m0", GATED, "warmup: false\n")
    write_model(tmp_path, "caller", CALLER, "executor: process\nwarmup: false\n")
    with Server(tmp_path, model_control="lazy") as server, Client(server.url) as client:
        assert client.infer("caller", {"x": np.float32([[5]])})["output"][0, 0] == 5
        with pytest.raises(StatusError) as caught:
            client.infer("caller", {"x": np.float32([[1]])}, parameters={"timeout": 300_000})
        assert caught.value.status == 504
        (tmp_path / "m0" / "go").touch()
        wait_until(lambda: states(server)["m0"][0] == "READY")
        assert client.infer("caller", {"x": np.float32([[1]])})["output"][0, 0] == 11


def test_a_bound_without_lazy_loading_is_refused(tmp_path):
    write(tmp_path, 1, 1)
    with pytest.raises(Exception, match="setting 'models_memory': with --model-control auto"):
        Server(tmp_path, models_memory="1G", start_timeout=20).start()


def test_the_documented_command_serves(tmp_path):
    control, memory = DOCUMENTED.findall((ROOT / "docs/reload.md").read_text())[0]
    write(tmp_path, 1, 1)
    with (
        Server(tmp_path, model_control=control, models_memory=memory) as server,
        Client(server.url) as client,
    ):
        assert ask(client, 0) == 1.0
        assert "models that are loaded when requests name them: 1" in server.log
