"""A version runs a share of the requests of another version, and its answers are compared; no client sees them."""

import re
import shutil
import threading
import time

import grpc
import numpy as np
import pytest
import requests

from ksrv.client import Client
from ksrv.client.errors import StatusError
from ksrv.testing import Server, ServerFailed
from tests.support.models import write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer

CLASSES = """
inputs: [{name: x, datatype: INT64, shape: [-1, 1]}]
outputs: [{name: label, datatype: INT64, shape: [-1, 1]}, {name: score, datatype: FP32, shape: [-1, 1]}]
"""
OLD = """
import numpy as np

def inference(x):
    return {"label": x % 10, "score": np.full(x.shape, 0.5, np.float32)}
"""
SAME = OLD.replace("0.5", "0.5000001")
WRONG = SAME.replace("x % 10", "np.where(x % 1000 == 777, 3, x % 10)")


@pytest.fixture
def shadowed(tmp_path):
    """Return the function that writes the model "m" with two versions."""

    def write(new, old=OLD, share=1.0, more="", keys=CLASSES):
        folder = tmp_path / "m"
        for version, code in (("1", old), ("2", new)):
            (folder / version).mkdir(parents=True, exist_ok=True)
            (folder / version / "handler.py").write_text(code)
        yaml = f"handler: handler.py\n{keys}shadow: {{version: 2, share: {share}}}\n{more}"
        (folder / "model.yaml").write_text(yaml)
        return tmp_path

    return write


def counts(server, family="requests"):
    """Return the values of a shadow metric of version 1, by its last labels."""
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    found = {}
    for line in text.splitlines():
        if line.startswith(f'ksrv_shadow_{family}_total{{model="m"') and 'version="1"' in line:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            key = labels["result"] if family == "requests" else (labels["output"], labels["result"])
            found[key] = int(float(line.rpartition(" ")[2]))
    return found


def compared(server):
    found = counts(server)
    return found["agreed"] + found["differed"] + found["failed"]


def seen(server):
    return sum(counts(server).values())


def infer(client, value, **more):
    return client.infer("m", {"x": np.array([[value]], np.int64)}, **more)


def ask(url, value):
    entry = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}
    return requests.post(f"{url}/v2/models/m/infer", json={"inputs": [entry]}, timeout=60)


class OverGrpc:
    """Sends as `Client` does, on the fast path of gRPC."""

    def __init__(self, server):
        self._channel = grpc.insecure_channel(server.grpc)
        self._stub = stub_infer(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def infer(self, model, inputs):
        raw = inputs["x"].tobytes()
        answer = self._stub(infer_request(model, ("x", "INT64", [1, 1]), raw=[raw]), timeout=60)
        assert answer.model_version == "1"
        return {"label": np.frombuffer(answer.raw_output_contents[0], np.int64).reshape(1, 1)}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("workers", "executor"), [(1, "inline"), (1, "process"), (2, "inline")])
def test_a_wrong_class_in_one_of_1000_answers_is_found(shadowed, protocol, workers, executor):
    root = shadowed(WRONG, more=f"executor: {executor}\n")
    with Server(root, workers=workers) as server:
        sender = Client(server.http) if protocol == "http" else OverGrpc(server)
        with sender as client:
            for number in range(10_000):
                assert infer(client, number)["label"].item() == number % 10
                if number % 200 == 199:
                    # The requests that wait for the shadow are bounded, so it gets the time to run them.
                    wait_until(lambda sent=number + 1: seen(server) >= sent)
                    if counts(server)["differed"]:
                        break
        found = counts(server)
        assert found["differed"] >= 1
        assert found["differed"] <= 1 + number // 1000
        outputs = counts(server, "outputs")
        assert outputs["label", "differed"] == found["differed"]
        assert outputs["score", "agreed"] == compared(server)
        with Client(server.http) as client:
            report = client.promote("m", 0.9999, 500)
    assert not report["promoted"]
    assert report["outputs"]["label"] == [
        compared_of(found),
        compared_of(found) - found["differed"],
    ]
    shown = "the output 'label' differs in 1 of 1 values; at [0, 0] it is 3, recorded is 7"
    assert all(shown in text for text in report["examples"]) and report["examples"]


def compared_of(found):
    return found["agreed"] + found["differed"] + found["failed"]


def test_a_version_that_agrees_is_promoted_and_serves(shadowed):
    with Server(shadowed(SAME), workers=2) as server, Client(server.http) as client:
        for number in range(100):
            assert infer(client, number).model_version == "1"
        wait_until(lambda: compared(server) == 100)
        report = client.promote("m", 0.999, 101)
        assert report["reason"] == "100 requests were compared, and 101 are needed"
        assert infer(client, 1).model_version == "1"
        report = client.promote("m", 0.999, 100)
        assert (report["promoted"], report["version"], report["before"]) == (True, "2", "1")
        for number in range(20):
            assert infer(client, number).model_version == "2"
        assert infer(client, 3, version="1").model_version == "1"
        with pytest.raises(StatusError, match="has no shadow"):
            client.promote("m", 0.5, 1)


def test_evidence_about_earlier_files_is_not_counted(shadowed):
    root = shadowed(SAME)
    with Server(root) as server, Client(server.http) as client:
        for number in range(50):
            infer(client, number)
        wait_until(lambda: compared(server) == 50)
        (root / "m/2/handler.py").write_text(WRONG)
        client.load("m")
        infer(client, 1)
        wait_until(lambda: compared(server) == 51)  # a counter never goes down
        assert client.promote("m", 0.5, 2)["reason"] == "1 requests were compared, and 2 are needed"
        (root / "m/2/handler.py").write_text("raise RuntimeError\n")
        assert client.promote("m", 0.5, 1)[
            "promoted"
        ]  # the code that was compared, not what is on disk
        assert infer(client, 1777)["label"].item() == 3


def test_a_shadow_that_cannot_be_loaded_or_was_removed_harms_nobody(shadowed):
    root = shadowed("raise RuntimeError('no weights')\n")
    with Server(root) as server, Client(server.http) as client:
        assert infer(client, 5)["label"].item() == 5
        wait_until(lambda: counts(server)["unavailable"] == 1)
        with pytest.raises(StatusError, match="not ready"):
            client.promote("m", 0.0, 1)
        (root / "m/2/handler.py").write_text(SAME)
        client.load("m")
        infer(client, 6)
        wait_until(lambda: counts(server)["agreed"] == 1)
        shutil.rmtree(root / "m/2")
        with pytest.raises(StatusError):
            client.load("m")
        assert infer(client, 7).model_version == "1"


CRASHES = OLD.replace(
    "    return", "    if (x == 13).any():\n        import os; os._exit(3)\n    return"
)
FAILS = OLD.replace(
    "    return", "    if (x == 13).any():\n        raise ValueError('unlucky')\n    return"
)


@pytest.mark.parametrize("code", [CRASHES, FAILS])
def test_a_failing_shadow_is_counted_and_no_client_notices(shadowed, code):
    with Server(shadowed(code, more="retry: false\n")) as server, Client(server.http) as client:
        for number in (12, 13, 14):
            assert infer(client, number)["label"].item() == number % 10
        wait_until(lambda: counts(server)["failed"] == 1)
        wait_until(lambda: seen(server) == 3)
        report = client.promote("m", 1.0, 1)
        assert any("it failed with 500" in text for text in report["examples"])


def test_a_slow_shadow_delays_no_client_and_keeps_few_requests(shadowed):
    slow = OLD.replace("    return", "    import time; time.sleep(0.5)\n    return")
    with Server(shadowed(slow)) as server, Client(server.http) as client:
        infer(client, 0)
        began = time.monotonic()
        for number in range(20):
            infer(client, number)
        assert time.monotonic() - began < 5  # the shadow needs ten seconds for them
        wait_until(lambda: counts(server)["agreed"] >= 1)


WIDE = """
inputs: [{name: x, datatype: INT64, shape: [-1, 524288]}]
outputs: [{name: y, datatype: INT64, shape: [-1, 1]}]
"""


def test_the_bytes_of_waiting_requests_are_bounded(shadowed):
    first = 'def inference(x): return {"y": x[:, :1]}\n'
    slow = f"import time\n\n{first.replace('return', 'time.sleep(10); return')}"
    with Server(shadowed(slow, old=first, keys=WIDE)) as server, Client(server.http) as client:
        row = np.zeros((1, 524288), np.int64)  # 4 MiB
        for _ in range(20):
            assert client.infer("m", {"x": row})["y"].shape == (1, 1)
        wait_until(lambda: counts(server)["queue_full"] >= 3)  # 16 of them have 64 MiB
        assert compared(server) < 4


def test_an_error_of_both_versions_agrees_and_of_one_differs(shadowed):
    refuses = "from ksrv import InferenceError\n" + OLD.replace(
        "    return",
        "    if (x < 0).any():\n        raise InferenceError('negative', 422)\n    return",
    )
    mild = refuses.replace("x < 0", "x < -5")
    with Server(shadowed(mild, old=refuses)) as server, Client(server.http, retries=0) as client:
        for value in (-9, -1):
            with pytest.raises(StatusError, match="negative"):
                infer(client, value)
        wait_until(lambda: compared(server) == 2)
        found = counts(server)
        assert (found["agreed"], found["differed"]) == (1, 1)
        assert (
            "it was answered; recorded is the error 422" in client.promote("m", 1, 1)["examples"][0]
        )


WORDS = """
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs: [{name: word, datatype: BYTES, shape: [-1]}]
"""
STREAM = """
def inference(text):
    return [words(bytes(row).decode()) for row in text]

def words(text):
    for word in text.split():
        yield word + " "
"""


def test_streams_are_not_shadowed(shadowed):
    new = STREAM.replace("yield word", "yield word.replace('two', 'deux')")
    with Server(shadowed(new, old=STREAM, keys=WORDS)) as server, Client(server.http) as client:
        assert len(list(client.stream("m", {"text": "one two three"}))) == 3
        client.infer("m", {"text": "two"})
        wait_until(lambda: counts(server)["differed"] == 1)
        assert seen(server) == 1  # copies run in the order of the requests


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("shadow: {version: -1}\n", "shadow.version: expected a whole number from 0"),
        ("shadow: {version: 2, share: 1.5}\n", "shadow.share: expected a number from 0 to 1"),
        ("shadow: {version: 2, share: .nan}\n", "shadow.share"),
        ("shadow: {version: 2, tolerance: -1}\n", "shadow.tolerance"),
        ("shadow: {share: 0.1}\n", "needs a version"),
        ("shadow: {version: '2'}\n", "shadow.version"),
        ("shadow: 2\n", "shadow: expected keys and values"),
        ("shadow: {version: 2, part: 0.1}\n", "shadow.part: unknown key"),
    ],
)
def test_a_section_that_cannot_be_is_refused_with_its_line(shadowed, more, said):
    root = shadowed(SAME)
    path = root / "m/model.yaml"
    path.write_text(path.read_text().partition("shadow:")[0] + more)
    with pytest.raises(ServerFailed, match=f"model.yaml, line 5: .*{re.escape(said)}"):
        Server(root).start()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("sequences: {max: 10}\nshadow: {version: 2}\n", "shadow: sequences"),
        ("shadow: {version: 7}\n", "names the versions 7, but the folder has 1, 2"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused_at_the_load(shadowed, more, said):
    root = shadowed(SAME)
    path = root / "m/model.yaml"
    path.write_text(path.read_text().partition("shadow:")[0] + more)
    with Server(root, wait_ready=False) as server, Client(server.http) as client:
        loaded(client)
        assert said in " ".join(line["reason"] for line in client.index())


def loaded(client):
    """Wait until the loads of all versions have ended."""
    wait_until(lambda: (found := client.index()) and all(e["state"] != "LOADING" for e in found))


def test_a_shadow_of_a_model_without_versions_is_refused(tmp_path):
    write_model(tmp_path, "m", OLD, CLASSES + "shadow: {version: 2}\n")
    with Server(tmp_path, wait_ready=False) as server, Client(server.http) as client:
        loaded(client)
        assert "needs folders of versions" in client.index()[0]["reason"]


def test_a_version_with_its_own_settings_stays_the_shadow(shadowed):
    root = shadowed(SAME)
    (root / "m/2/model.yaml").write_text(f"handler: handler.py\n{CLASSES}shadow: {{version: 1}}\n")
    with Server(root) as server, Client(server.http) as client:
        assert infer(client, 1).model_version == "1"
        wait_until(lambda: counts(server)["agreed"] == 1)


def test_without_the_serving_version_the_shadow_serves_no_request_without_a_version(shadowed):
    root = shadowed(SAME, old="raise RuntimeError\n")
    with Server(root, wait_ready=False) as server, Client(server.http, retries=0) as client:
        loaded(client)
        with pytest.raises(StatusError) as refused:
            infer(client, 1)
        assert refused.value.status == 503
        assert infer(client, 1, version="2").model_version == "2"


def test_requests_of_the_shadows_clients_are_neither_shadowed_nor_kept_waiting(shadowed):
    with Server(shadowed(SAME)) as server, Client(server.http) as client:
        for number in range(20):
            assert infer(client, number, version="2").model_version == "2"
        infer(client, 1)
        wait_until(lambda: seen(server) == 1)
        text = requests.get(f"{server.url}/metrics", timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith("ksrv_shadow_")]
        assert lines and not any('version="2"' in line for line in lines)


def test_a_share_is_sampled_and_rests_between_the_runs(shadowed):
    with Server(shadowed(SAME, share=0.1)) as server, Client(server.http) as client:
        for number in range(400):
            infer(client, number)
        wait_until(lambda: compared(server) > 0)
        time.sleep(0.5)
        assert 0 < seen(server) < 90  # 40 on average, with a standard deviation of 6


def test_a_share_bounds_the_time_in_which_the_shadow_runs(shadowed):
    run = 0.2
    slow = OLD.replace("    return", f"    import time; time.sleep({run})\n    return")
    with Server(shadowed(slow, share=0.5)) as server, Client(server.http) as client:
        while not seen(server):  # then the server knows how long a run takes
            infer(client, 1)
            time.sleep(2 * run)
        known = seen(server)
        began = time.monotonic()
        while time.monotonic() < began + 2.5:
            infer(client, 1)
        most = 1 + (time.monotonic() - began) * 0.5 / run
        time.sleep(2 * run)
        assert 1 <= seen(server) - known <= most


def test_the_smallest_share_samples_nothing_and_serves(shadowed):
    with Server(shadowed(SAME, share="5.0e-324")) as server, Client(server.http) as client:
        for number in range(20):
            assert infer(client, number)["label"].item() == number % 10
        assert seen(server) == 0


def test_records_and_shadows_each_take_their_share(shadowed, tmp_path):
    records = tmp_path / "records"
    root = shadowed(SAME, share=1.0, more=f"record: {{to: {records}, sample: 0.25}}\n")
    with Server([root / "m"]) as server, Client(server.http) as client:
        for number in range(400):
            infer(client, number)
        wait_until(lambda: compared(server) == 400)
        lines = sum(len(file.read_text().splitlines()) for file in records.rglob("*.jsonl"))
        assert 50 < lines < 160
        assert not (records / "m/2").exists()


def test_nothing_of_a_request_is_in_the_log(shadowed):
    with Server(shadowed(WRONG)) as server, Client(server.http) as client:
        infer(client, 918273777, request_id="secret-id")
        wait_until(lambda: counts(server)["differed"] == 1)
        assert "918273777" not in server.log
        assert "secret-id" not in server.log


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "agreement"),
        ({"agreement": 1.5, "requests": 1}, "agreement"),
        ({"agreement": -0.1, "requests": 1}, "agreement"),
        ({"agreement": "all", "requests": 1}, "agreement"),
        ({"agreement": 1, "requests": 0}, "requests"),
        ({"agreement": 1, "requests": 10**30}, "requests"),
        ({"agreement": 1}, "requests"),
        ([], "object"),
    ],
)
def test_a_bound_that_cannot_be_gets_400(promotable, body, said):
    answer = requests.post(promotable, json=body, timeout=60)
    assert (answer.status_code, said in answer.text) == (400, True), answer.text


@pytest.fixture(scope="module")
def promotable(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for version in ("1", "2"):
        (root / "m" / version).mkdir(parents=True)
        (root / "m" / version / "handler.py").write_text(OLD)
    (root / "m/model.yaml").write_text(f"handler: handler.py\n{CLASSES}shadow: {{version: 2}}\n")
    with Server(root) as server:
        yield f"{server.url}/v2/repository/models/m/promote"


def test_an_unknown_model_cannot_be_promoted(promotable):
    bound = {"agreement": 0.9, "requests": 1}
    url = promotable.replace("/m/", "/other/")
    assert requests.post(url, json=bound, timeout=60).status_code == 404


def test_promotion_needs_the_control_token(shadowed, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret-token-of-the-operator\n")
    token.chmod(0o600)
    with Server([shadowed(SAME) / "m"], control_token_file=str(token)) as server:
        url = f"{server.url}/v2/repository/models/m/promote"
        bound = {"agreement": 0.9, "requests": 1}
        assert requests.post(url, json=bound, timeout=60).status_code == 401
        headers = {"Authorization": "Bearer s3cret-token-of-the-operator"}
        answer = requests.post(url, json=bound, headers=headers, timeout=60)
        assert answer.json()["promoted"] is False


def test_a_server_under_load_is_promoted_without_a_failed_request(shadowed):
    with Server(shadowed(SAME), workers=2) as server, Client(server.http) as client:
        failed, stop = [], threading.Event()

        def load():
            while not stop.is_set():
                answer = ask(server.url, 4)
                if answer.status_code != 200:
                    failed.append(answer.text)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: compared(server) >= 50)
        assert client.promote("m", 0.99, 50)["promoted"]
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert infer(client, 4).model_version == "2"
