"""A config.properties as TorchServe reads and writes it: Java's escapes, lists of models, addresses."""

import os

import pytest

from ksrv.dialects.torchserve.settings import config_properties
from ksrv.dialects.torchserve.settings.config_properties import read_properties, translate
from ksrv.server.settings import SettingsError
from ksrv.server.settings_sources import resolve


@pytest.fixture
def settings_of(tmp_path):
    def read(*lines):
        path = tmp_path / "config.properties"
        path.write_text("\n".join(lines) + "\n")
        return resolve({"torchserve_config": str(path)}, {}).settings

    return read


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"address=http\://127.0.0.1\:8080", {"address": "http://127.0.0.1:8080"}),
        (r"store=/tmp/my\ store", {"store": "/tmp/my store"}),
        (r"a\:b\=c\ d=1", {"a:b=c d": "1"}),
        (r"text=\t\n\r\f\q\\", {"text": "\t\n\r\fq\\"}),
        (r"text=\u00e4\ud83d\ude00\u12", {"text": "ä😀u12"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=C:\\\\\nb=4", {"a": "C:\\", "b": "4"}),
        ("# C:\\\na=1\n  ! D:\\\nb=2", {"a": "1", "b": "2"}),
        ("a=1,\\\n# 2", {"a": "1,# 2"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_the_rules_of_java(text, found):
    assert read_properties(text) == found


def test_a_snapshot_as_torchserve_writes_it(settings_of):
    settings = settings_of(
        "#Saving snapshot",
        r'model_snapshot={\n  "name"\: "startup.cfg",\n  "modelCount"\: 1,\n  "models"\: {\n    "m"\: {\n'
        r'      "1.0"\: {\n        "defaultVersion"\: true,\n        "marName"\: "m.mar"\n      }\n    }\n  }\n}',
        r"inference_address=http\://127.0.0.1\:8080",
        "model_store=/tmp/store",
    )
    assert settings.models == ("/tmp/store/m.mar",)
    assert settings.http == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("chosen", "models"),
    [
        ("b.mar,", ("b.mar",)),
        (",a.mar,,m=b.mar, ", ("a.mar", "b.mar")),
        ("ALL", ("",)),
        ("all", ("",)),
        ("NONE", ()),
        (",", ()),
    ],
)
def test_the_models_that_load_models_names(settings_of, tmp_path, chosen, models):
    settings = settings_of(f"model_store={tmp_path}", f"load_models={chosen}")
    assert settings.models == tuple(str(tmp_path / name) for name in models)


@pytest.mark.parametrize("name", [".", "m=.", "folder/..", r"a\u0000.mar"])
def test_a_name_that_is_no_archive_of_the_store_is_refused(settings_of, tmp_path, name):
    with pytest.raises(SettingsError, match=r"config\.properties: load_models"):
        settings_of(f"model_store={tmp_path}", f"load_models=b.mar,{name}")


def test_a_store_that_is_a_ring_of_links_is_handed_on(settings_of, tmp_path):
    (tmp_path / "ring").symlink_to("ring")
    settings = settings_of(f"model_store={tmp_path}/ring", "load_models=b.mar")
    assert settings.models == (f"{tmp_path}/ring/b.mar",)  # serving it reports the missing file


def translated(folder, *lines, environment=None):
    path = folder / "config.properties"
    path.write_text("\n".join(lines) + "\n")
    return translate(path, environment or {})


@pytest.mark.parametrize(
    ("gpus", "most", "workers", "unit"),
    [(0, None, 3, "processor"), (2, None, 2, "GPU"), (2, 1, 1, "GPU"), (2, 0, 3, "processor")],
)
def test_no_default_workers_are_one_for_each_gpu_or_processor(
    monkeypatch, tmp_path, gpus, most, workers, unit
):
    monkeypatch.setattr(config_properties, "nvidia_gpus", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    lines = [] if most is None else [f"number_of_gpu={most}"]
    found = translated(tmp_path, "default_workers_per_model=0", *lines)
    assert found.defaults.workers == workers
    assert found.applied["default_workers_per_model"].endswith(f"one for each {unit}")
    assert translated(tmp_path, *lines).defaults.workers == 1


def test_variables_in_values_are_replaced(tmp_path):
    environment = {"STORE": "/srv/$1", "NUMBER": "3"}
    found = translated(
        tmp_path,
        "model_store=$$STORE$$/a",
        "load_models=all",
        "default_workers_per_model=$$NUMBER$$",
        "other=$$ $X$ $$$$",
        environment=environment,
    )
    assert found.settings["models"] == ["/srv/$1/a"]
    assert found.defaults.workers == 3


def test_a_variable_that_is_not_set_is_named(settings_of, monkeypatch):
    monkeypatch.delenv("MISSING", raising=False)
    told = r"model_store='\$\$MISSING\$\$' names the environment variable MISSING, which is not set; set it, or write"
    with pytest.raises(SettingsError, match=told):
        settings_of("model_store=$$MISSING$$")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_text_is_latin_1_as_for_java_where_it_is_not_utf_8(tmp_path, encoding):
    path = tmp_path / "config.properties"
    path.write_bytes("# für alle\nmodel_store=/tmp/süß\nload_models=all\n".encode(encoding))
    assert translate(path, {}).settings["models"] == ["/tmp/süß"]


def test_a_socket_is_handed_on(settings_of):
    assert settings_of("inference_address=unix:/run/x.sock").http == "unix:/run/x.sock"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("default_workers_per_model=-1", "default_workers_per_model must be at least 0, not -1"),
        ("job_queue_size=0", "job_queue_size must be at least 1, not 0"),
        ("inference_address=http://[::1", "='http://.::1' is not accepted: expected http://HOST"),
        ("inference_address=unix:x", "expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"),
        ("inference_address=ftp://0.0.0.0:8443", "properties: inference_address"),
        ("inference_address=https://0.0.0.0:8443", "properties: inference_address"),
        (
            "certificate_file=c.pem\ninference_address=https://a:8443",
            "properties: inference_address",
        ),
        (
            "private_key_file=k.pem\ninference_address=https://a:8443",
            "properties: inference_address",
        ),
        ("model_store=store\nload_models=http://somewhere/a.mar", "properties: load_models"),
        ("model_store=store\nload_models=../a.mar", "properties: load_models"),
        ("job_queue_size=many", "properties: job_queue_size"),
        ("decode_input_request=perhaps", "properties: decode_input_request"),
        (
            'model_snapshot={"models": {"a": {"1.0": {"minWorkers": 1}}}}',
            "properties: model_snapshot",
        ),
        ("model_snapshot={", "properties: model_snapshot"),
        ('models={"a": {"1.0": {"k": ' + "[" * 100_000, "it is nested too deep"),
        ('model_snapshot={"models": {"a": {"1.0": {"k": ' + "[" * 100_000, "it is nested too deep"),
        ("models=[]", r'Expected `object`, got `array`; expected models, such as {"m": {"1.0":'),
        ("models=null", "Expected `object`, got `null`"),
        ('models="a"', "Expected `object`, got `str`"),
        ('models={"a": 3}', "Expected `object`, got `int`"),
        ('models={"a": {"1.0": 3}}', "Expected `object`, got `int`"),
        ("models=a", r'JSON is malformed: .*; expected models, such as {"m": '),
        ('model_snapshot={"models": 3}', "Expected `object`, got `int`"),
        (r"metrics_config=\u0000", "it holds a NUL character"),
    ],
)
def test_a_wrong_value_is_refused_in_words(settings_of, line, words):
    with pytest.raises(SettingsError, match=words):
        settings_of(line)
