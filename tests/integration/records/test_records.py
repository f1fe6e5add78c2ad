"""Requests are recorded over every protocol, bounded and without credentials, and can be replayed."""

import base64
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
import requests
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.client import Client
from ksrv.client.errors import StatusError
from ksrv.records import RecordError, read_records
from ksrv.repository.model_yaml import ConfigError, load_model_config
from ksrv.testing import Server, ServerFailed
from tests.support.images.files import png
from tests.support.models import VECTOR, write_model
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, stub_infer

HANDLER = """
from ksrv import InferenceError

def inference(x):
    if (x < 0).any():
        raise InferenceError("no negative numbers", 422)
    answer = x * 2
    x[:] = 77  # what is recorded is what was sent
    return {"y": answer}
"""

TEXTS = """
def inference(text):
    return [words(bytes(row).decode()) for row in text]

def words(text):
    for word in text.split():
        yield word + " "
"""

TEXTS_YAML = """
inputs: [{name: text, datatype: BYTES, shape: [-1]}]
outputs: [{name: word, datatype: BYTES, shape: [-1]}]
"""

MEAN = 'def inference(image): return {"mean": image.mean(axis=(1, 2)).astype("float32")}\n'

MEAN_YAML = """
inputs: [{name: image, datatype: UINT8, shape: [-1, 8, 8, 3], image: {color: RGB}}]
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]
"""

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module", params=["inline", "process"])
def executor(request):
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory, executor):
    """A server whose models record every request, and the folder of the records."""
    root = tmp_path_factory.mktemp("models")
    records = tmp_path_factory.mktemp("records")
    more = f"executor: {executor}\nwarmup: false\n"
    keys = f"record: {{to: {records}, sample: 1, without: [X-Secret]}}\n{more}"
    write_model(root, "double", HANDLER, VECTOR + keys)
    write_model(root, "words", TEXTS, TEXTS_YAML + keys)
    write_model(root, "mean", MEAN, MEAN_YAML + keys)
    bare = f"record: {{to: {records}, sample: 1, images: false}}\n{more}"
    write_model(root, "bare", MEAN, MEAN_YAML + bare)
    write_model(root, "unrecorded", HANDLER, VECTOR + more)
    with Server(root) as server:
        yield server, records


def recorded(folder, model, wanted=1):
    def found():
        try:
            return [one for one in read_records(folder) if one.model == model]
        except RecordError:
            return []

    wait_until(lambda: len(found()) >= wanted)
    return found()


def metric(server, model, result):
    text = requests.get(server.url + "/metrics", timeout=60).text
    for line in text.splitlines():
        of_model = line.startswith("ksrv_records_total") and f'model="{model}"' in line
        if of_model and f'result="{result}"' in line:
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{model} has no {result} in {text}")


def of_id(folder, model, request_id):
    wait_until(lambda: any(one.id == request_id for one in recorded(folder, model)))
    return next(one for one in recorded(folder, model) if one.id == request_id)


def test_a_request_of_rest_is_recorded_with_its_answer(made):
    server, records = made
    with Client(server.http) as client:
        client.infer("double", {"x": ROW}, request_id="rest", parameters={"a": 1})
    record = of_id(records, "double", "rest")
    assert record.inputs[0].array().tolist() == ROW.tolist()
    assert record.outputs[0].array().tolist() == (ROW * 2).tolist()
    assert (record.outputs[0].name, record.outputs[0].datatype) == ("y", "FP32")
    assert record.parameters["a"] == 1
    assert record.duration_ms > 0
    assert record.failure is None


def test_a_request_of_protocol_v1_is_recorded(made):
    server, records = made
    requests.post(
        f"{server.url}/v1/models/double:predict",
        json={"instances": ROW.tolist()},
        headers={"X-Request-Id": "v1"},
        timeout=60,
    ).raise_for_status()
    wait_until(
        lambda: (
            sum(one.headers.get("x-request-id") == "v1" for one in recorded(records, "double")) == 1
        )
    )


def test_a_call_of_grpc_is_recorded(made):
    server, records = made
    message = infer_request("double", ("x", "FP32", [1, 4]), raw=[ROW.tobytes()])
    message.id = "grpc"
    with grpc.insecure_channel(server.grpc) as channel:
        stub_infer(channel)(message, timeout=60)
    assert of_id(records, "double", "grpc").outputs[0].array().tolist() == (ROW * 2).tolist()


def test_an_error_is_recorded_with_its_status(made):
    server, records = made
    with Client(server.http, retries=0) as client, pytest.raises(StatusError):
        client.infer("double", {"x": -ROW}, request_id="error")
    record = of_id(records, "double", "error")
    assert record.failure.status == 422
    assert record.failure.message == "no negative numbers"
    assert record.outputs is None


def test_chunks_of_a_stream_are_recorded(made):
    server, records = made
    with Client(server.http) as client:
        parts = list(client.stream("words", {"text": "one two three"}, request_id="stream"))
    assert len(parts) == 3
    record = of_id(records, "words", "stream")
    assert record.streamed
    assert [one[0].tensor().data for one in record.chunks] == [[b"one "], [b"two "], [b"three "]]


def test_an_image_is_recorded_as_it_came(made):
    server, records = made
    with Client(server.http) as client:
        for model in ("mean", "bare"):
            client.infer(model, {"image": png(8, 8)}, request_id=f"image of {model}")
    assert of_id(records, "mean", "image of mean").inputs[0].tensor().data == [png(8, 8)]
    left_out = of_id(records, "bare", "image of bare").inputs[0]
    assert left_out.raw is None
    with pytest.raises(ValueError, match="was left out"):
        left_out.tensor()


CREDENTIALS = (
    "Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "X-Auth-Token", "X-Forwarded-Access-Token",
    "X-Forwarded-Client-Cert", "Client-Cert-Chain", "X-Amz-Security-Token", "X-Goog-Iap-Jwt-Assertion",
    "X-Access-Key", "x-functions-key", "x-amzn-oidc-data", "x_api_key", "X-Bearer",
)  # fmt: skip


def test_credentials_and_named_headers_are_left_out(made):
    server, records = made
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW.ravel().tolist()}
    requests.post(
        f"{server.url}/v2/models/double/infer",
        json={"id": "headers", "inputs": [entry]},
        headers=dict.fromkeys((*CREDENTIALS, "X-Secret"), "hidden") | {"X-Shown": "shown"},
        timeout=60,
    ).raise_for_status()
    record = of_id(records, "double", "headers")
    assert record.inputs[0].array().tolist() == ROW.tolist()
    assert record.headers["x-shown"] == "shown"
    text = b"".join(path.read_bytes() for path in records.rglob("*.jsonl"))
    assert b"hidden" not in text


def test_files_are_for_the_servers_user_alone_and_a_line_is_json(made):
    server, records = made
    with Client(server.http) as client:
        client.infer("double", {"x": ROW}, request_id="file")
    of_id(records, "double", "file")
    for path in records.rglob("*.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600
    line = next(
        json.loads(line)
        for path in (records / "double").rglob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"file"' in line
    )
    raw = base64.b64decode(line["inputs"][0]["raw"])
    assert struct.unpack("<4f", raw) == (0, 1, 2, 3)


def test_records_are_counted_and_others_are_not_made(made):
    server, records = made
    with Client(server.http) as client:
        client.infer("double", {"x": ROW}, request_id="counted")
        client.infer("unrecorded", {"x": ROW})
    of_id(records, "double", "counted")
    wait_until(lambda: metric(server, "double", "written") >= 1)
    assert metric(server, "double", "disk") == 0
    assert not (records / "unrecorded").exists()


def test_a_request_that_is_too_large_is_served_and_counted(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    keys = f"record: {{to: {records}, sample: 1}}\nwarmup: false\n"
    yaml = VECTOR.replace("[-1, 4]", "[-1, -1]") + keys
    write_model(root, "double", HANDLER, yaml)
    with Server(root) as server, Client(server.http) as client:
        big = np.zeros((1, 5 << 20), np.float32)
        assert client.infer("double", {"x": big})["y"].shape == big.shape
        wait_until(lambda: metric(server, "double", "too_large") == 1)
        assert metric(server, "double", "written") == 0


def test_files_are_rotated_and_the_oldest_removed(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    keys = f"record: {{to: {records}, sample: 1, size: 4096, count: 3}}\n"
    write_model(root, "double", HANDLER, VECTOR + keys)
    for first in (0, 300):  # the second server continues with the files of the first
        with Server(root) as server, Client(server.http) as client:
            for number in range(first, first + 300):
                client.infer("double", {"x": ROW}, request_id=str(number))
            wait_until(lambda: metric(server, "double", "written") == 300)
        files = sorted((records / "double").rglob("*.jsonl"))
        assert 2 <= len(files) <= 3
        assert all(path.stat().st_size <= 4096 for path in files)
        kept = [int(one.id) for one in read_records(records)]
        assert max(kept) == first + 299
        assert min(kept) > first + 200


def test_workers_write_files_of_their_own(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    write_model(root, "double", HANDLER, f"{VECTOR}record: {{to: {records}, sample: 1}}\n")
    with Server(root, workers=2) as server:
        for number in range(60):
            with Client(server.http) as client:
                client.infer("double", {"x": ROW}, request_id=str(number))
        wait_until(lambda: metric(server, "double", "written") == 60)
    assert sorted(int(one.id) for one in read_records(records)) == list(range(60))
    processes = {path.name.split("-")[1] for path in records.rglob("*.jsonl")}
    assert 1 <= len(processes) <= 2


def test_a_full_disk_costs_records_and_no_request(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    keys = f"record: {{to: {records}, sample: 1}}\nwarmup: false\n"
    write_model(root, "double", HANDLER, VECTOR + keys)
    with Server(root) as server, Client(server.http) as client:
        client.infer("double", {"x": ROW}, request_id="before")
        of_id(records, "double", "before")
        # A file of this process and its children may be no larger: the same EFBIG, and the same way, as a full disk.
        pids = [int(one) for one in workers_of(server)]
        (path,) = records.rglob("*.jsonl")
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 100, -1))
        for number in range(20):
            client.infer("double", {"x": ROW}, request_id=f"full {number}")
        wait_until(lambda: metric(server, "double", "disk") == 20)
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))
        client.infer("double", {"x": ROW}, request_id="after")
        of_id(records, "double", "after")
    assert [one.id for one in read_records(records)] == ["before", "after"]


def test_deleted_file_is_replaced_and_truncated_file_is_continued(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    write_model(root, "double", HANDLER, VECTOR + f"record: {{to: {records}, sample: 1}}\n")
    with Server(root) as server, Client(server.http) as client:
        for number, change in enumerate((Path.unlink, lambda path: os.truncate(path, 0))):
            client.infer("double", {"x": ROW}, request_id=f"before {number}")
            of_id(records, "double", f"before {number}")
            (path,) = records.rglob("*.jsonl")
            change(path)
            client.infer("double", {"x": ROW}, request_id=f"after {number}")
            of_id(records, "double", f"after {number}")
        shutil.rmtree(records)
        client.infer("double", {"x": ROW}, request_id="last")
        of_id(records, "double", "last")


def test_nothing_but_files_of_workers_is_written_to(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    folder = records / "double" / "0"
    folder.mkdir(parents=True)
    foreign = tmp_path / "foreign"
    foreign.write_text("mine\n")
    (folder / "x-link.jsonl").symlink_to(foreign)
    os.mkfifo(folder / "y-pipe.jsonl")
    (folder / "z-folder.jsonl").mkdir()
    keys = f"record: {{to: {records}, sample: 1, size: 4096, count: 1}}\nwarmup: false\n"
    write_model(root, "double", HANDLER, VECTOR + keys)
    with Server(root) as server, Client(server.http) as client:
        for number in range(30):  # more than one file takes
            client.infer("double", {"x": ROW}, request_id=str(number))
        wait_until(lambda: metric(server, "double", "written") == 30)
        assert metric(server, "double", "disk") == 0
    assert foreign.read_text() == "mine\n"
    assert len([one for one in folder.iterdir() if one.name[0] in "xyz"]) == 3


def workers_of(server):
    """The processes of a server, which inherit nothing of this limit later."""
    found = [server.pid]
    for pid in found:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            found += [int(one) for one in children.read().split()]
    return found


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{}", "record"),
        ("{to: records}", "absolute path of a folder, which begins with a slash"),
        ("{to: ''}", "to"),
        ("{to: 7}", "to"),
        ("{to: /tmp/x, sample: 2}", "sample"),
        ("{to: /tmp/x, sample: -1}", "sample"),
        ("{to: /tmp/x, sample: often}", "sample"),
        ("{to: /tmp/x, format: csv}", "format"),
        ("{to: /tmp/x, size: 1}", "size"),
        ("{to: /tmp/x, count: 0}", "count"),
        ("{to: /tmp/x, images: 3}", "images"),
        ("{to: /tmp/x, without: X-Secret}", "without"),
        ("{to: /tmp/x, rate: 3}", "rate"),
        ("/tmp/x", "record"),
    ],
)
def test_invalid_section_is_a_config_error(tmp_path, section, told):
    write_model(tmp_path, "double", HANDLER, f"{VECTOR}record: {section}\n")
    with pytest.raises(ConfigError, match=told):
        load_model_config(tmp_path / "double")


def test_folder_that_cannot_be_made_fails_the_load(tmp_path):
    write_model(tmp_path, "double", HANDLER, f"{VECTOR}record: {{to: /proc/records}}\n")
    with pytest.raises(ServerFailed, match=r"record\.to: the folder double/0 cannot be made there"):
        Server(tmp_path).start()


class TestReplay:
    def run(self, url, folder, *options, model="double"):
        command = [sys.executable, "-m", "ksrv", "bench", model, "--url", url]
        done = subprocess.run(
            [*command, "--replay", str(folder), *options],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    @pytest.fixture(scope="class")
    def day(self, tmp_path_factory):
        """Records of one day, and a server that answers like the server that made them."""
        root = tmp_path_factory.mktemp("models")
        records = tmp_path_factory.mktemp("records")
        keys = f"record: {{to: {records}, sample: 1}}\nwarmup: false\n"
        write_model(root, "double", HANDLER, VECTOR + keys)
        write_model(root, "words", TEXTS, TEXTS_YAML + keys)
        write_model(root, "mean", MEAN, MEAN_YAML + keys)
        with Server(root) as server, Client(server.http, retries=0) as client:
            for number in range(10):
                client.infer("double", {"x": ROW + number}, request_id=f"day {number}")
            with pytest.raises(StatusError):
                client.infer("double", {"x": -ROW}, request_id="day error")
            list(client.stream("words", {"text": "one two"}, request_id="day stream"))
            client.infer("mean", {"image": png(8, 8)})
            recorded(records, "double", 11)
            recorded(records, "words")
            recorded(records, "mean")
        return root, records

    @pytest.fixture(scope="class")
    def same(self, day, tmp_path_factory):
        root = tmp_path_factory.mktemp("same")
        write_model(root, "double", HANDLER, VECTOR)
        write_model(root, "words", TEXTS, TEXTS_YAML + "warmup: false\n")
        write_model(root, "mean", MEAN, MEAN_YAML)
        with Server(root) as server:
            yield server

    def test_replay_of_the_same_model_finds_equal_answers(self, day, same):
        for url in (same.url, "grpc://" + same.grpc):
            code, out, err = self.run(url, day[1], "--rate", "200")
            assert "11 requests sent" in out, err
            assert "11 answers equal, 0 different, 0 failed" in out
            assert code == 0

    def test_replay_sends_all_requests_at_a_higher_speed(self, day, same):
        code, out, err = self.run(same.url, day[1], "--speed", "1000", "--json")
        assert code == 0, err
        document = json.loads(out)
        assert (document["sent"], document["equal"]) == (11, 11)

    def test_streams_and_images(self, day, same):
        for model in ("words", "mean"):
            code, out, err = self.run(same.url, day[1], "--speed", "1000", model=model)
            assert code == 0, out + err
            assert "1 answers equal" in out

    def test_differences_are_told(self, day, tmp_path):
        handler = HANDLER.replace("x * 2", "x * 2 + (x == 5)").replace("422", "400")
        write_model(tmp_path, "double", handler, VECTOR)
        with Server(tmp_path) as server:
            code, out, _ = self.run(server.url, day[1], "--rate", "200")
        assert code == 1
        assert "different" in out
        assert "the output 'y' differs in 1 of 4 values; at [0, 3] it is" in out
        assert "failed with 400: no negative numbers" in out

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--rate", "5", "--speed", "2"], "not both"),
            (["--find-batching", "--goal", "50"], "nor --find-batching"),
            (["--rate", "5,6"], "one --rate"),
            (["--concurrency", "4"], "--concurrency"),
            (["--tolerance", "-1"], "tolerance"),
            (["--speed", "0"], "speed"),
        ],
    )
    def test_options_that_exclude_each_other_are_refused(self, tmp_path, options, told):
        done = CliRunner().invoke(main, ["bench", "double", "--replay", str(tmp_path), *options])
        assert (done.exit_code, told in done.output) == (2, True), done.output

    @pytest.mark.parametrize("option", ["--speed", "--tolerance"])
    def test_options_of_replays_need_a_replay(self, option):
        done = CliRunner().invoke(main, ["bench", "double", option, "2"])
        assert (done.exit_code, f"{option} needs --replay" in done.output) == (2, True)

    def test_files_that_cannot_be(self, day, same, tmp_path):
        empty = tmp_path / "empty"
        empty.mkdir()
        code, _, err = self.run(same.url, empty)
        assert (code, "holds no file of records" in err) == (1, True)
        bad = tmp_path / "bad.jsonl"
        bad.write_text('{"time": 1}\n')
        code, _, err = self.run(same.url, bad)
        assert (code, "bad.jsonl:1: the line is not a record" in err) == (1, True)
        code, _, err = self.run(same.url, day[1], model="other")
        assert (code, "holds no record of the model other" in err) == (1, True)

    def test_records_are_samples_of_the_warm_up(self, day, tmp_path):
        _, records = day
        folder = write_model(tmp_path, "double", HANDLER, VECTOR + "warmup: [day.jsonl]\n")
        files = list((records / "double").rglob("*.jsonl"))
        (folder / "day.jsonl").write_bytes(b"".join(path.read_bytes() for path in files))
        with Server(tmp_path) as server, Client(server.http) as client:
            assert client.ready("double")
        (folder / "day.jsonl").write_text('{"time": "now"}\n')
        with pytest.raises(ServerFailed, match=r"day\.jsonl.*not a record"):
            Server(tmp_path).start()


def test_the_file_of_a_killed_worker_is_not_gone_on_with(tmp_path):
    root, records = tmp_path / "models", tmp_path / "records"
    write_model(root, "double", HANDLER, f"{VECTOR}record: {{to: {records}, sample: 1}}\n")
    for number in (0, 1):
        with Server(root) as server, Client(server.http) as client:
            client.infer("double", {"x": ROW}, request_id=str(number))
            recorded(records, "double", number + 1)
        if number == 0:
            (path,) = records.rglob("*.jsonl")
            with path.open("ab") as file:
                file.write(b'{"time": 1, "id')
    assert sorted(one.id for one in read_records(records)) == ["0", "1"]
    assert len(list(records.rglob("*.jsonl"))) == 2
