"""Reading an OpenVINO Model Server's config.json: settings, reports, errors with file and line."""

import json
import os

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.dialects.openvino.config_keys import IGNORED, REFUSED
from ksrv.dialects.openvino.options import OpenVinoOptions
from ksrv.dialects.registry import formats
from ksrv.model.config import VersionPolicy
from ksrv.model.spec import SequenceLimits
from ksrv.repository.layout import Repository, RepositoryError


def write_models(root, name="m", versions=("1",), files=("model.xml", "model.bin")):
    for version in versions:
        folder = root / name / version
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file).write_bytes(b"")


def scan(root, *configs, text=None, **rest):
    path = root / "config.json"
    listed = [{"config": {"name": "m", "base_path": "m", **config}} for config in configs]
    path.write_text(json.dumps({"model_config_list": listed, **rest}) if text is None else text)
    return Repository([path], formats()).scan()


def config_of(root, **keys):
    write_models(root, versions=("1", "2", "3"))
    entry = scan(root, keys)["m"]
    assert entry.error is None
    return next(reversed(entry.versions.values())).config


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, {}),
        ({"batch_size": 4}, {"batch": 4}),
        ({"batch_size": "auto"}, {"batch": -1}),
        ({"batch_size": "1:8"}, {"batch": (1, 8)}),
        ({"batch_size": -1}, {"batch": -1}),
        ({"shape": "(1,3,224,224)"}, {"shapes": {"": (1, 3, 224, 224)}}),
        ({"shape": "( -1, 3, 200:500 , 8, )"}, {"shapes": {"": (-1, 3, (200, 500), 8)}}),
        ({"shape": "auto"}, {"shapes": {"": ()}}),
        ({"shape": {"a": "(1,2)", "b": "auto"}}, {"shapes": {"a": (1, 2), "b": ()}}),
        ({"shape": '{"a": "(1,2)"}'}, {"shapes": {"a": (1, 2)}}),
        ({"shape": "(2,)", "batch_size": 3}, {"shapes": {"": (2,)}}),
        ({"layout": "NHWC:NCHW"}, {"layouts": {"": "NHWC:NCHW"}}),
        ({"layout": {"a": "N..."}}, {"layouts": {"a": "N..."}}),
        ({"layout": "auto"}, {}),
    ],
)  # fmt: skip
def test_keys_become_options(tmp_path, keys, options):
    assert OpenVinoOptions.of(config_of(tmp_path, **keys).dialect) == OpenVinoOptions(**options)


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 2}, {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ('{"INFERENCE_NUM_THREADS": "2"}', {"INFERENCE_NUM_THREADS": "2"}),
    ],
)
def test_a_plugin_config_becomes_properties(tmp_path, given, properties):
    assert config_of(tmp_path, plugin_config=given).openvino.properties == properties


@pytest.mark.parametrize(
    ("policy", "versions", "read"),
    [
        (None, ["3"], VersionPolicy()),
        ({"latest": {}}, ["3"], VersionPolicy()),
        ({"latest": {"num_versions": 2}}, ["2", "3"], VersionPolicy(latest=2)),
        ({"all": {}}, ["1", "2", "3"], VersionPolicy(latest=0)),
        ('{"specific": {"versions": [3, 1]}}', ["1", "3"], VersionPolicy(specific=(3, 1))),
    ],
)
def test_versions(tmp_path, policy, versions, read):
    write_models(tmp_path, versions=("1", "2", "3"))
    entry = scan(tmp_path, {} if policy is None else {"model_version_policy": policy})["m"]
    assert list(entry.versions) == versions
    assert entry.versions[versions[0]].config.version_policy == read
    assert entry.versions[versions[0]].config.model.endswith(f"/m/{versions[0]}/model.xml")


def test_streams_are_instances(tmp_path):
    assert config_of(tmp_path, plugin_config={"NUM_STREAMS": "4"}).instances == 4


def test_models_lie_beside_the_file_or_anywhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    write_models(elsewhere, "n", files=("net.onnx",))
    write_models(tmp_path, "flat", versions=(".",))
    entries = scan(
        tmp_path,
        {"name": "n", "base_path": str(elsewhere / "n")},
        {"name": "flat", "base_path": "./flat"},
    )
    assert entries["n"].versions["1"].config.model == str(elsewhere / "n/1/net.onnx")
    assert entries["flat"].versions["1"].config.model == str(tmp_path / "flat/model.xml")


def test_a_mapping_file_renames_tensors(tmp_path):
    write_models(tmp_path)
    mapping = {"inputs": {"in": "image"}, "outputs": {"out": "scores"}}
    (tmp_path / "m/1/mapping_config.json").write_text(json.dumps(mapping))
    options = OpenVinoOptions.of(scan(tmp_path, {})["m"].versions["1"].config.dialect)
    assert options.names == {"in": "image", "out": "scores"}
    mapping["inputs"]["other"] = "image"
    (tmp_path / "m/1/mapping_config.json").write_text(json.dumps(mapping))
    assert "gives two tensors one name" in scan(tmp_path, {})["m"].versions["1"].error


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"max_sequence_number": 0}, "max_sequence_number: "),
        ({"idle_sequence_cleanup": "yes"}, "idle_sequence_cleanup: "),
        ({"target_device": "GPU"}, "target_device: 'GPU'; OpenVINO's models run on the CPU"),
        ({"mean": "[1,2,3]"}, "mean: a model.yaml says it"),
        ({"custom_loader_options": {"loader_name": "x"}}, "custom_loader_options: "),
        ({"nonsense": 1}, "model_config_list[0].config.nonsense: unknown key"),
        ({"batchsize": 1}, "did you mean batch_size?"),
        ({"name": "a/b"}, "'a/b' is not a model name"),
        ({"name": ""}, "is not a model name"),
        ({"name": 5}, "5 is not a model name"),
        ({"base_path": 5}, "expected a text, found 5"),
        ({"base_path": ""}, "base_path"),
        ({"base_path": "s3://bucket/m"}, "remote storage is not read"),
        ({"base_path": "gs://bucket/m"}, "remote storage is not read"),
        ({"base_path": "../m"}, "'../m' goes up a folder"),
        ({"base_path": "a/../../m"}, "goes up a folder"),
        ({"base_path": "a\0b"}, "goes up a folder"),
        ({"base_path": "none"}, "none is not a folder"),
        ({"batch_size": 0}, "expected a number"),
        ({"batch_size": True}, "found true"),
        ({"batch_size": 1.5}, "found 1.5"),
        ({"batch_size": "many"}, "found 'many'"),
        ({"batch_size": 10**30}, "expected a number"),
        ({"shape": "1,2"}, 'expected "auto" or a shape'),
        ({"shape": "(0,2)"}, 'expected "auto" or a shape'),
        ({"shape": "(1," * 5000}, 'expected "auto" or a shape'),
        ({"shape": [1] * 40}, 'expected "auto" or a shape'),
        ({"shape": {"a": None}}, "found nothing"),
        ({"layout": "N H"}, "expected a layout"),
        ({"layout": ["NHWC"]}, "expected a layout"),
        ({"plugin_config": "NUM_STREAMS=2"}, "expected keys and values"),
        ({"plugin_config": {"a": {"b": 1}}}, "expected a text or a number"),
        ({"model_version_policy": {"latest": {}, "all": {}}}, "expected latest, all or specific"),
        ({"model_version_policy": {"latest": {"num_versions": 0}}}, "whole number from 1"),
        ({"model_version_policy": {"specific": {"versions": [7]}}}, "names the versions 7"),
        ({"nireq": -1}, "expected a whole number from 0"),
    ],
)
def test_a_model_that_cannot_be_served_leaves_the_others(tmp_path, keys, said):
    write_models(tmp_path)
    (tmp_path / "a").mkdir()
    entries = scan(tmp_path, keys, {"name": "good"})
    assert entries["good"].error is None and list(entries["good"].versions) == ["1"]
    [bad] = [entry for name, entry in entries.items() if name != "good"]
    assert said in bad.error and str(tmp_path / "config.json") in bad.error
    assert not bad.versions and len(bad.error) < 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: not JSON"),
        ("{", "not JSON"),
        ("[]", "expected model_config_list, found a list"),
        ("{}", "expected model_config_list"),
        ('{"model_config_list": {}}', "model_config_list: expected a list, found a mapping"),
        ('{"model_config_list": [], "modelconfig": 1}', "line 1: modelconfig: unknown key"),
        ('{"model_config_list": [],\n "model_config_list": []}', "line 2: model_config_list: written"),
        ('{"model_config_list": NaN}', "NaN is not a JSON number"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nested"),
        ('{"a": [' + "1," * 60_000 + "1]}", "more than 50000 values"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        (" " * 1_100_000, "longer than 1048576 bytes"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_config(tmp_path, text, said):
    with pytest.raises(RepositoryError, match=r"config\.json") as caught:
        scan(tmp_path, text=text)
    assert said in str(caught.value)


@pytest.mark.parametrize("raw", [b"\xff\xfe{\0}\0", b"\x7fELF\0\0", bytes(range(256))])
def test_binary_files_are_no_config(tmp_path, raw):
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(RepositoryError, match=r"config\.json"):
        Repository([tmp_path / "config.json"], formats()).scan()


def test_an_entry_that_is_no_model_is_named_by_its_place(tmp_path):
    write_models(tmp_path)
    text = json.dumps({"model_config_list": [5, {"config": {"base_path": "m"}}, {"conf": {}}]})
    entries = scan(tmp_path, text=text)
    assert sorted(entries) == [f"model_config_list.{number}" for number in range(3)]
    assert "needs a name" in entries["model_config_list.1"].error


def test_graphs_and_pipelines_are_refused_by_name(tmp_path):
    write_models(tmp_path)
    entries = scan(
        tmp_path,
        {},
        mediapipe_config_list=[{"name": "graph"}],
        pipeline_config_list=[{"name": "pipe", "inputs": []}, 5],
        monitoring={"metrics": {"enable": True}},
    )
    assert entries["m"].error is None
    assert "MediaPipe graphs are not served" in entries["graph"].error
    assert "pipelines are not served" in entries["pipe"].error
    assert "pipeline_config_list.1" in entries
    assert entries["m"].report.ignored == {"monitoring": "/metrics is there by itself"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("a.xml", "b.xml"), "has several models: a.xml, b.xml"),
        (
            ("model.pdmodel",),
            "holds no .xml, .onnx or .tflite file and no saved_model.pb; model.pdmodel is not",
        ),
        (("frozen.pb",), "and no saved_model.pb; frozen.pb is not served"),
        ((), "holds no .xml, .onnx or .tflite file"),
    ],
)
def test_a_version_without_one_model_is_that_versions_error(tmp_path, files, said):
    write_models(tmp_path, versions=("1",))
    write_models(tmp_path, versions=("2",), files=files)
    entry = scan(tmp_path, {"model_version_policy": {"all": {}}})["m"]
    assert entry.versions["1"].error is None and said in entry.versions["2"].error


def test_links_out_of_the_base_path_are_refused(tmp_path):
    (tmp_path / "secret.xml").write_bytes(b"")
    (tmp_path / "m/1").mkdir(parents=True)
    os.symlink(tmp_path / "secret.xml", tmp_path / "m/1/model.xml")
    assert (
        "leads out of the model's folder; put what its link leads to in its place"
        in scan(tmp_path, {})["m"].versions["1"].error
    )


def test_every_key_is_reported(tmp_path):
    write_models(tmp_path)
    ignored = dict.fromkeys(IGNORED, 1)
    report = scan(tmp_path, {**ignored, "allow_cache": True, "target_device": "AUTO"})["m"].report
    assert set(report.ignored) == set(IGNORED)
    assert not report.refused and report.applied["target_device"] == "the CPU"
    report = scan(tmp_path, dict.fromkeys(REFUSED, "1"))["m"].report
    assert set(report.refused) == set(REFUSED)


def test_import_prints_the_report(tmp_path):
    write_models(tmp_path)
    scan(tmp_path, {"nireq": 8, "batch_size": "auto"}, {"name": "gpu", "target_device": "GPU"})
    done = CliRunner().invoke(main, ["import", str(tmp_path / "config.json")])
    lines = [line.strip() for line in done.output.splitlines()]
    assert done.exit_code == 0 and lines[0] == "m 1"
    assert "batch_size: any" in lines
    assert any(line.startswith("nireq: ignored, ") for line in lines)
    assert any(line.startswith("target_device: REFUSED, 'GPU'") for line in lines)
    (tmp_path / "config.json").write_text("{")
    done = CliRunner().invoke(main, ["import", str(tmp_path / "config.json")])
    assert done.exit_code == 1 and "not JSON" in done.output


def test_one_name_for_several_models_is_refused(tmp_path):
    write_models(tmp_path)
    scan(tmp_path, {})
    with pytest.raises(RepositoryError, match="model_name"):
        Repository([tmp_path / "config.json"], formats(), model_name="x").scan()


@pytest.mark.parametrize(
    ("keys", "limits"),
    [
        ({"stateful": True}, SequenceLimits(max=500, idle_timeout_ms=300_000, several_rows=True)),
        (
            {"stateful": True, "max_sequence_number": 7, "idle_sequence_cleanup": False},
            SequenceLimits(max=7, idle_timeout_ms=86_400_000, several_rows=True),
        ),
        ({"stateful": False, "max_sequence_number": 7}, None),
    ],
)
def test_a_stateful_model_serves_sequences(tmp_path, keys, limits):
    write_models(tmp_path)
    entry = scan(tmp_path, keys)["m"]
    config = entry.versions["1"].config
    assert (config.sequences, OpenVinoOptions.of(config.dialect).stateful) == (
        limits,
        limits is not None,
    )
    assert ("stateful" in entry.report.applied) == (limits is not None)
    assert ("max_sequence_number" in entry.report.ignored) == (limits is None)
