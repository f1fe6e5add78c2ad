"""Each row of the acceptance list of TorchServe's handlers, B01 to B21, on a real server.

The archives are made by torch-model-archiver and run in separate processes. Expected answers were
recorded from TorchServe 0.12.0 (tests/golden/torchserve).
"""

import base64
import http.client
import io
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest
import requests
import torch

from ksrv.testing import Server
from tests.support.torchserve.archives import archive
from tests.support.torchserve.golden_models import RECORDED, content_of, named_content, recorded
from tests.support.wait_until import wait_until

ONE_TO_FOUR = [1, 2, 3, 4]
ANSWER = [2.5, 5.5, 10.0]


OUTCOMES = recorded("outcomes.json")
SEEN = recorded("request-data.json")


def predict(server, path, body=None, **options):
    options.setdefault("json", body)
    return requests.post(f"{server.url}/predictions/{path}", timeout=60, **options)


def error_text(code, message, kind="InternalServerException"):
    return json.dumps({"code": code, "type": kind, "message": message}, indent=2) + "\n"


def test_b04_compiled_model_and_unknown_backend(served):
    compiled = predict(served, "eager/2.0", ONE_TO_FOUR).json()
    assert (compiled["y"], compiled["class"]) == (ANSWER, "OptimizedModule")
    eager = predict(served, "nope", ONE_TO_FOUR).json()
    assert (eager["y"], eager["class"]) == (ANSWER, "Line")
    assert "the model stays eager: unknown backend 'nope'" in served.log


def test_highest_version_serves_requests_that_name_none(served):
    assert predict(served, "eager", ONE_TO_FOUR).json()["y"] == ANSWER  # 2.0, the highest
    assert predict(served, "eager", ONE_TO_FOUR).json()["class"] == "OptimizedModule"


def settle(server):
    wait_until(lambda: "models loaded" in server.log, 600, lambda: server.log)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A server whose archives cannot be loaded, all but one."""
    store = tmp_path_factory.mktemp("broken") / "store"
    store.mkdir()
    archive(store, "two", "two_classes_handler.py", settings={"deviceType": "cpu"})
    archive(store, "lonely", "missing_import_handler.py", settings={"deviceType": "cpu"})
    archive(store, "sequence", "seen_handler.py", settings={"sequenceBatching": True})
    archive(store, "named", "function_handler:named", settings={"deviceType": "cpu"})
    with Server(store, torchserve_api=True, wait_ready=False) as server:
        settle(server)
        yield server


def reasons(server):
    lines = requests.post(f"{server.url}/v2/repository/index", timeout=30).json()
    return {line["name"]: line.get("reason", "") for line in lines}


def test_b05_two_classes_and_no_function(broken):
    text = "Expected only one class in custom service code or a function entry point"
    assert text in reasons(broken)["two"]
    answer = predict(broken, "two", [1])
    assert answer.status_code == 503
    assert text in answer.json()["message"]


def test_b06_failing_import_is_reported_as_itself(broken):
    reason = reasons(broken)["lonely"]
    assert "No module named 'a_package_that_nobody_has'" in reason
    assert "missing_import_handler.py, line 3" in reason
    assert requests.get(f"{broken.url}/v2/health/ready", timeout=30).status_code == 503
    assert predict(broken, "named", [1]).text == "named"


def test_archive_that_asks_for_sequences_is_refused_by_the_key(broken):
    assert "sequenceBatching: sequences are not served" in reasons(broken)["sequence"]


@pytest.mark.parametrize("case", SEEN.values(), ids=SEEN)
def test_b07_b08_b09_what_a_handler_sees(served, case):
    """B07: bodies by content type; B08: multipart; B09: headers and url_path."""
    request = case["request"]
    method, headers, content = request["method"], dict(request["headers"]), content_of(request)
    connection = http.client.HTTPConnection(served.http, timeout=30)
    connection.putrequest(method, request["path"], skip_accept_encoding=True)
    if method != "GET":
        headers["Content-Length"] = str(len(content))
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, found
    expected = case["handler_sees"]
    row = {
        name: {"type": part["type"], "repr": part["repr"]}
        for name, part in expected["parts"].items()
    }
    assert found["row"] == row
    headers = {
        name: value for name, value in expected["headers"].items() if name != "content-length"
    }
    current = {"Host": served.http, "Content-Length": str(len(content))}
    for name in headers.keys() & current.keys():
        headers[name] = current[name]
    headers["X-Request-Id"] = answer.getheader(
        "x-request-id"
    )  # which TorchServe shows in the context alone
    assert found["headers"] == headers
    assert found["id"] == answer.getheader("x-request-id")


def test_b07_json_that_is_nested_too_deep_stays_bytes(served):
    headers = {"Content-Type": "application/json"}
    row = predict(served, "echo", data=b"[" * 100_000, headers=headers).json()["row"]
    assert row["body"]["type"] == "bytearray"


def test_b09_headers_mode_and_path(served):
    own = {"X-My-Header": "v1", "Explain": "True", "Describe": "True"}
    plain = predict(served, "echo", [1], headers=own).json()["headers"]
    assert (plain["X-My-Header"], plain["explain"], plain["url_path"]) == ("v1", "False", "")
    assert not {"Explain", "Describe"} & plain.keys()  # the route decides the mode


def test_b10_context_at_load(served):
    found = predict(served, "echo", [1]).json()
    properties = found["properties"]
    assert properties["model_dir"] == found["cwd"] == found["first_path"]
    assert properties["gpu_id"] is None
    assert properties["batch_size"] == 1
    assert properties["server_name"] == "MMS"
    assert properties["server_version"] == "0.12.0"
    assert properties["limit_max_image_pixels"] is True
    assert found["yaml"]["myCustomKey"] == {"a": [1, "x"]}
    assert found["manifest"]["model"]["modelName"] == "echo"


def test_b11_exception_leaves_the_process_alive(served):
    before = predict(served, "outcome", {"mode": "pid"}).text
    answer = predict(served, "outcome", {"mode": "exception"})
    assert (answer.status_code, answer.text) == (503, error_text(503, "Prediction failed"))
    assert predict(served, "outcome", {"mode": "pid"}).text == before


PYTHONS_PHRASES = {"Unprocessable Entity": HTTPStatus.UNPROCESSABLE_ENTITY.phrase}
"""Standard phrases that the running Python may know by their newer names."""


def recorded_outcome(served, case_id):
    """Compare the answer to a recorded request with the recorded answer; return it."""
    case = OUTCOMES[case_id]
    answer = predict(served, "outcome", json.loads(case["request"]["body"]["text"]))
    expected = case["response"]
    assert answer.status_code == expected["status"], answer.text
    if "text" in expected["body"]:
        assert answer.content.decode() == expected["body"]["text"]
    elif "base64" in expected["body"]:
        assert answer.content == base64.b64decode(expected["body"]["base64"])
    if expected["reason"]:
        assert answer.reason == PYTHONS_PHRASES.get(expected["reason"], expected["reason"])
    for name, value in expected["headers"].items():
        if name != "content-length":
            assert answer.headers[name] == value
    return answer


RAISED = ["O01", "O02", "O03", "O04", "O05", "O06", "O07"]
BROKEN = ["O08", "O09", "O10", "O11", "O12", "O13"]
ITEMS = ["O14", "O15", "O16", "O17", "O18", "O19", "O20", "O21", "O22", "O23", "O24", "O26"]


@pytest.mark.parametrize("case_id", [*RAISED, *BROKEN, *ITEMS])
def test_b12_b13_b14_what_a_handler_raises_or_returns(served, case_id):
    """B12: statuses of exceptions; B13: answers that break the return rule; B14: items as they are sent."""
    recorded_outcome(served, case_id)


def test_b14_tensor_is_sent_as_torch_saves_it(served):
    answer = predict(served, "outcome", {"mode": "tensor"})
    assert torch.equal(torch.load(io.BytesIO(answer.content)), torch.arange(3))


def test_b15_first_chunk_comes_before_the_handler_returns(served, tmp_path):
    go = tmp_path / "go"
    answer = predict(served, "outcome", {"mode": "stream", "go": str(go)}, stream=True)
    assert answer.headers["ts_stream_next"] == "true"
    assert answer.headers["transfer-encoding"] == "chunked"
    pieces = answer.iter_content(None)
    assert next(pieces) == b"chunk0 "  # the handler waits for the file
    go.touch()
    assert b"".join(pieces) == b"chunk1 chunk2 last"


def wait_for(file):
    wait_until(lambda: file.exists() and file.read_text())
    return file.read_text()


def test_b15_handler_learns_that_its_client_has_left(served, tmp_path):
    left = tmp_path / "left"
    answer = predict(served, "outcome", {"mode": "endless", "left": str(left)}, stream=True)
    assert next(answer.iter_content(5)) == b"chunk"
    answer.close()
    assert wait_for(left).startswith("False after ")
    assert predict(served, "outcome", {"mode": "int"}).json() == 7  # the process serves on


def test_b16_description_and_explanation(served):
    (described,) = requests.get(f"{served.url}/models/picture?customized=true", timeout=30).json()
    assert described["modelName"] == "picture"
    assert described["customizedMetadata"] == {
        "hello": "describe",
        "inputs": [["x", [3, 224, 224]]],
    }
    (undescribed,) = requests.get(f"{served.url}/models/echo?customized=true", timeout=30).json()
    assert undescribed["customizedMetadata"] == {}
    answer = requests.post(
        f"{served.url}/explanations/picture", data=named_content("noise8.jpg"), timeout=30
    )
    assert answer.json() == {"insight": [1, 3, 224, 224], "target": 0, "raw": "bytearray"}


def test_b17_timeout_ends_the_process_and_the_next_request_is_served(served):
    before = predict(served, "outcome", {"mode": "pid"}).text
    started = time.monotonic()
    answer = predict(served, "outcome", {"mode": "slow", "t": 600})
    assert (answer.status_code, answer.text) == (500, error_text(500, "Worker died."))
    assert time.monotonic() - started >= 4
    assert predict(served, "outcome", {"mode": "pid"}).text != before


@pytest.mark.parametrize("mode", ["hard_exit", "system_exit"])
def test_b17_exit_is_told_at_once_and_the_process_replaced(served, mode):
    before = predict(served, "outcome", {"mode": "pid"}).text
    answer = predict(served, "outcome", {"mode": mode})
    assert (answer.status_code, answer.text) == (500, error_text(500, "Worker died."))
    assert predict(served, "outcome", {"mode": "pid"}).text != before


def test_b17_queue_that_is_full(served, tmp_path):
    """One runs, two wait (jobQueueSize), and of three more each is refused."""
    go = tmp_path / "go"
    started = tmp_path / "started"
    body = {"mode": "wait_for", "file": str(go), "started": str(started)}
    before = refused_for_queue(served)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(predict, served, "outcome", body)]
        while not started.exists() and not answers[0].done():
            time.sleep(0.01)
        answers += [pool.submit(predict, served, "outcome", body) for _ in range(5)]
        refused = []
        while len(refused) < 3:
            refused = [answer for answer in answers if answer.done()]
            time.sleep(0.01)
        go.touch()
    assert sorted(answer.result().status_code for answer in answers) == [200] * 3 + [503] * 3
    expected = OUTCOMES["O32"]["responses"][0]["body"]["text"].replace("modes", "outcome")
    assert {answer.result().text for answer in refused} == {expected}
    assert refused[0].result().headers["retry-after"] == "1"
    assert refused_for_queue(served) == before + 3


def refused_for_queue(server):
    name = 'ksrv_refused_requests_total{protocol="http",reason="queue_full"} '
    return float(page(server, name).partition("\n" + name)[2].partition("\n")[0])


def page(server, until):
    """Return the metrics page once it holds a line; metrics come home beside the answers."""
    deadline = time.monotonic() + 30
    while True:
        text = requests.get(f"{server.url}/metrics", timeout=30).text
        if until in text or time.monotonic() > deadline:
            return text
        time.sleep(0.05)


def test_b18_custom_metrics(served):
    before = page(served, "").count("\nMyCount{")
    assert before in (0, 1)
    recorded_outcome(served, "O27")
    text = page(served, 'MyHist_count{k="v"')
    own = json.loads((RECORDED / "metrics.json").read_text())["own_metrics_of_modes_handler"][
        "lines"
    ]
    plain = {re.sub(r'Hostname="[^"]*",?', "", line) for line in text.splitlines()}
    for line in own:
        # the recorded page ends each list of labels with a comma, and puts le last
        wanted = (
            line.replace('Hostname="<host>",', "").replace(",}", "}").replace("modes", "outcome")
        )
        name, _, value = wanted.rpartition(" ")
        found = [entry for entry in plain if entry.rpartition(" ")[0].replace(",}", "}") == name]
        assert len(found) == 1, (name, found)
        assert float(found[0].rpartition(" ")[2]) == float(value)


def test_b18_times_of_handler_and_stages(served):
    assert predict(served, "profiled", ONE_TO_FOUR).json() == {"y": ANSWER}
    text = page(served, 'PredictionTime{ModelName="profiled"')
    for name in ("HandlerTime", "PredictionTime", "ts_handler_preprocess", "ts_handler_inference"):
        assert re.search(
            rf'^{name}{{ModelName="profiled",Level="Model",Hostname=".+"}} [0-9.]+$', text, re.M
        )
        assert f"# TYPE {name} gauge" in text
    assert "ts_handler_postprocess" not in text  # overridden without the decorator


def test_b19_onnx_session(served):
    found = predict(served, "session", [-1, 2, -3, 4]).json()
    assert found == {
        "y": [0, 2, 0, 4],
        "class": "InferenceSession",
        "providers": ["CPUExecutionProvider"],
        "threads": len(os.sched_getaffinity(0)),  # its share of the CPUs, as the only instance
    }


TWO_INPUTS = {
    "id": "q",
    "inputs": [
        {"name": "a", "shape": [4], "datatype": "FP32", "data": ONE_TO_FOUR},
        {"name": "b", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]},
    ],
}
TWO_OUTPUTS = [
    {"name": "a", "datatype": "FP64", "shape": [3], "data": ANSWER},
    {"name": "b", "datatype": "FP64", "shape": [3], "data": [0.5, -0.5, 0.0]},
]


def test_b20_envelope_of_kserve_v2(served):
    for path in ("/v2/models/typed/infer", "/predictions/typed"):
        answer = requests.post(served.url + path, json=TWO_INPUTS, timeout=30)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "id": "q",
            "model_name": "typed",
            "model_version": "1.0",
            "outputs": TWO_OUTPUTS,
        }


def test_b21_micro_batches_keep_the_order(served):
    """The batch is full with four requests, so that none of them waits for the delay."""

    def ask(first):
        return predict(served, "micro", [first, 0, 0, 0]).json()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    for first, answer in enumerate(answers):
        assert answer["n"] == 1
        expected = [0.5, 0.4 * first - 0.5, 0.8 * first]
        assert answer["y"] == pytest.approx(expected, abs=1e-6)


def test_a_part_without_a_file_name_stays_a_bytearray(served):
    """TorchServe takes it for a field of a form, with any content type."""
    parts = {
        "text": (None, "v", "text/plain"),
        "json": (None, "[1]", "application/json"),
        "file": ("f.json", "[1]", "application/json"),
    }
    seen = predict(served, "echo", files=parts).json()
    shown = {name: (value["type"], value["repr"]) for name, value in seen["row"].items()}
    assert shown == {
        "text": ("bytearray", "bytearray(b'v')"),
        "json": ("bytearray", "bytearray(b'[1]')"),
        "file": ("list", "[1]"),
    }
    kinds = {name: seen["headers"][name]["content-type"] for name in parts}
    assert kinds == {"text": "", "json": "", "file": "application/json"}
