"""`ksrv import`, a config.properties, and where archives and their files lie."""

import requests
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.dialects.registry import formats
from ksrv.dialects.torchserve.archive.defaults import ArchiveDefaults
from ksrv.dialects.torchserve.archive.format import torchserve_format
from ksrv.dialects.torchserve.archive.model_config import read_archive
from ksrv.dialects.torchserve.settings.config_properties import translate
from ksrv.repository.format import Formats
from ksrv.repository.layout import Repository
from ksrv.server.settings_sources import resolve
from ksrv.testing import Server
from tests.dialects.torchserve.handlers.test_handler_behaviours import (
    ANSWER,
    ONE_TO_FOUR,
    predict,
    settle,
)
from tests.support.certificates import self_signed
from tests.support.torchserve.archives import archive

SETTINGS = {
    "deviceType": "cpu",
    "batchSize": 4,
    "maxBatchDelay": 1,
    "responseTimeout": 7,
    "jobQueueSize": 9,
    "useVenv": False,
    "mine": 1,
}


def run(*arguments):
    return CliRunner().invoke(main, ["import", *map(str, arguments)])


def test_report_names_every_key_and_what_is_missing(tmp_path, model_files):
    store = tmp_path / "store"
    store.mkdir()
    path = archive(
        store, "line", "numbers_handler.py", files=model_files, model="line.pt",
        settings=SETTINGS | {"useVenv": True}, requirements="numpy\na-package-that-nobody-has==1\n",
    )  # fmt: skip
    found = run(path)
    assert found.exit_code == 0, found.output
    lines = [line.strip() for line in found.output.splitlines()]
    assert lines[0] == "line 1.0"
    assert "handler numbers_handler.py" in lines
    assert "batchSize: 4 requests in a batch at most" in lines
    assert "responseTimeout: 7 s for one batch" in lines
    assert "jobQueueSize: 9 requests may wait" in lines
    assert any("useVenv" in line and "ksrv installs no packages" in line for line in lines)
    assert "for the handler alone: mine" in lines
    assert "python: of model.yaml" in found.output
    assert "not installed: a-package-that-nobody-has;" in found.output


def test_imported_folder_serves_the_same(tmp_path, model_files):
    """Beside it an unpacked archive is served in place; both have files of the same names."""
    store, models = tmp_path / "store", tmp_path / "models"
    store.mkdir()
    for name, word in (("one", "first"), ("two", "second")):
        source = tmp_path / name
        source.mkdir()
        (source / "model.py").write_text(f"WORD = {word!r}\n")
        (source / "handler.py").write_text(
            "import model\n\n\ndef handle(data, context):\n"
            "    return None if data is None else [model.WORD] * len(data)\n"
        )
        archive(
            store, name, source / "handler.py", definition=source / "model.py",
            settings=SETTINGS, form="default" if name == "one" else "no-archive",
        )  # fmt: skip
    done = run(store / "one.mar", "--to", models)
    assert done.exit_code == 0, done.output
    assert "exists" in run(store / "one.mar", "--to", models).output
    with Server([models, store / "two"], torchserve_api=True, start_timeout=200) as server:
        assert predict(server, "one", [1]).text == "first"
        assert predict(server, "one/1.0", [1]).text == "first"
        assert predict(server, "two", [1]).text == "second"
        (described,) = requests.get(f"{server.url}/models/one", timeout=30).json()
        assert (described["batchSize"], described["maxBatchDelay"]) == (4, 1)
        assert described["responseTimeout"] == 7
        assert described["jobQueueStatus"]["remainingCapacity"] == 9
    found = Repository([models], formats()).scan()["one"].versions["1.0"].config
    expected = read_archive(store / "one.mar", "one").versions["1.0"].config
    assert found.batching == expected.batching
    assert (found.instances, found.retry, found.executor) == (1, False, "process")


def test_refused_archive_is_not_imported(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    path = archive(store, "many", "seen_handler.py", settings={"torchrun": {"nproc-per-node": 2}})
    assert "torchrun: REFUSED" in run(path).output
    refused = run(path, "--to", tmp_path / "models")
    assert refused.exit_code == 1
    assert not (tmp_path / "models" / "many").exists()


PROPERTIES = r"""
# a comment
inference_address=http://0.0.0.0:9090
grpc_inference_port = 7000
management_address=http://127.0.0.1:8081
model_store={store}
load_models=line.mar,\
  two.mar
max_request_size=1000
job_queue_size=7
default_workers_per_model=2
default_response_timeout=11
service_envelope=json
decode_input_request=false
number_of_netty_threads=8
models={{"line": {{"1.0": {{"defaultVersion": true, "marName": "line.mar", "batchSize": 3}}}}}}
"""


def test_config_properties_is_translated_and_the_rest_named(tmp_path, model_files):
    store = tmp_path / "store"
    store.mkdir()
    archive(store, "line", "numbers_handler.py", files=model_files, model="line.pt")
    path = tmp_path / "config.properties"
    path.write_text(PROPERTIES.format(store=store))
    found = translate(path)
    assert found.settings == {
        "http": "0.0.0.0:9090",
        "grpc": "127.0.0.1:7000",
        "limits.body": 1000,
        "torchserve_api": True,
        "models": [str(store / "line.mar"), str(store / "two.mar")],
    }
    assert set(found.ignored) == {"management_address", "number_of_netty_threads"}
    settings = resolve({"torchserve_config": str(path), "http": "off"}, {}).settings
    assert settings.http == "off"  # a flag wins
    assert settings.torchserve_api
    flags = {"torchserve_config": str(path), "torchserve_api": False}
    assert not resolve(flags, {}).settings.torchserve_api
    assert settings.limits.body == 1000
    readers = Formats([torchserve_format(found.defaults)])
    config = Repository([store], readers).scan()["line"].versions["1.0"].config
    assert (config.instances, config.queue_size, config.run_timeout_ms) == (2, 7, 11_000)
    assert config.envelope == "json"
    assert config.batching.max_batch_size == 3
    assert config.dialect["torchserve"]["decode"] is False


KSERVE = """
inference_address=http://0.0.0.0:8085
management_address=http://0.0.0.0:8085
metrics_address=http://0.0.0.0:8082
grpc_inference_port=7070
grpc_management_port=7071
enable_envvars_config=true
install_py_dep_per_model=true
model_store={store}
model_snapshot={{"name":"startup.cfg","modelCount":1,"models":{{"line":{{"1.0":{{"defaultVersion":true,\
    "marName":"line.mar","minWorkers":2,"maxWorkers":5,"batchSize":3,"maxBatchDelay":500,"responseTimeout":60}}}}}}}}
"""


def test_the_settings_that_kserve_mounts_are_served(tmp_path, model_files):
    """The keys and the variable of KServe's runtime for TorchServe and of its example."""
    folder = tmp_path / "models"
    store = folder / "model-store"
    store.mkdir(parents=True)
    archive(store, "line", "numbers_handler.py", files=model_files, model="line.pt")
    path = folder / "config" / "config.properties"
    path.parent.mkdir()
    path.write_text(KSERVE.format(store=store))
    found = translate(path, {"TS_SERVICE_ENVELOPE": "kserve", "TS_JOB_QUEUE_SIZE": ""})
    assert found.settings["models"] == [str(store / "line.mar")]
    assert found.defaults.envelope == "kserve"
    assert "grpc_management_port" in found.ignored
    config = (
        Repository([store], Formats([torchserve_format(found.defaults)]))
        .scan()["line"]
        .versions["1.0"]
        .config
    )
    assert (config.instances, config.run_timeout_ms) == (2, 60_000)
    assert config.batching.max_batch_size == 3
    path.write_text(KSERVE.format(store=store).replace("enable_envvars_config=true\n", ""))
    assert translate(path, {"TS_SERVICE_ENVELOPE": "kserve"}).defaults.envelope is None


def test_archives_of_one_name_are_its_versions_in_order(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    for version in ("10.0", "9.1", "9.0.b"):
        archive(store, "m", "seen_handler.py", version=version, file_name=f"file{version}")
    entry = Repository([store], Formats([torchserve_format(ArchiveDefaults())])).scan()["m"]
    assert entry.error is None
    assert list(entry.versions) == ["9.0.b", "9.1", "10.0"]


def test_the_certificate_of_a_config_properties_is_served(tmp_path, model_files):
    store = tmp_path / "store"
    store.mkdir()
    archive(store, "line", "numbers_handler.py", files=model_files, model="line.pt")
    key, cert = self_signed(tmp_path / "tls")
    path = tmp_path / "config.properties"
    path.write_text(
        f"inference_address=https://127.0.0.1:8443\nmodel_store={store}\nload_models=all\n"
        f"private_key_file={key}\ncertificate_file={cert}\nkeystore=store.p12\n"
    )
    with Server([], torchserve_config=str(path), wait_ready=False) as server:
        settle(server)
        url = f"https://{server.http}/predictions/line"
        answer = requests.post(url, json=ONE_TO_FOUR, verify=str(cert), timeout=60)
        assert answer.json()["y"] == ANSWER
        assert requests.get(f"http://{server.http}/ping", timeout=60).status_code == 400
        assert "keystore: ignored, TLS takes PEM files" in server.log


def test_a_plain_address_leaves_certificates_alone(tmp_path):
    path = tmp_path / "config.properties"
    path.write_text(
        "inference_address=http://127.0.0.1:0\nprivate_key_file=k.pem\ncertificate_file=c.pem\n"
    )
    found = translate(path)
    assert found.settings == {"torchserve_api": True, "http": "127.0.0.1:0"}
    assert found.ignored == dict.fromkeys(
        ("private_key_file", "certificate_file"), "the inference_address is not https"
    )
    path.write_text(path.read_text().replace("http://127.0.0.1:0", "https://[::1]"))
    found = translate(path).settings
    assert (found["http"], found["tls_cert"], found["tls_key"]) == ("[::1]:443", "c.pem", "k.pem")


def test_other_compressed_files_beside_archives_are_none(tmp_path, model_files):
    store = tmp_path / "store"
    store.mkdir()
    for name in ("vocab.csv.gz", "notes.gz", "weights.bin.gz"):
        (store / name).write_bytes(b"\x1f\x8b\x08\0")
    archive(store, "line", "numbers_handler.py", files=model_files, model="line.pt", form="tgz")
    with Server(store, torchserve_api=True) as server:
        index = requests.post(f"{server.url}/v2/repository/index", timeout=60).json()
        assert [(one["name"], one["state"]) for one in index] == [("line", "READY")]
