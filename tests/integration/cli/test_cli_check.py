"""`ksrv check`: what it prints and with which status it ends."""

import json

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.models import VECTOR, write_broken, write_double, write_model

FAILS = 'def inference(x): raise RuntimeError("not with zeros")\n'


@pytest.fixture
def check():
    return lambda *arguments: CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_models_that_serve(check, tmp_path):
    write_double(tmp_path)
    done = check(tmp_path)
    assert done.exit_code == 0, done.output
    assert "double" in done.output and "FP32[-1,4]" in done.output
    assert done.output.endswith("1 of 1 models are ready\n")


def test_models_that_do_not_serve_are_status_1(check, tmp_path):
    write_double(tmp_path)
    write_broken(tmp_path)
    write_model(tmp_path, "fails", FAILS, VECTOR)
    done = check(tmp_path)
    assert done.exit_code == 1
    assert "the weights are gone" in done.output
    assert "2 of 3 models cannot be served as they are: broken, fails" in done.output


def test_skipped_checks_are_reported(check, tmp_path):
    write_model(tmp_path, "fails", FAILS, VECTOR + "warmup: false\n")
    done = check(tmp_path)
    assert done.exit_code == 0, done.output
    assert "fails: ready, but not run" in done.output
    assert "If it has a model.yaml, sample files under `warmup:` there run it" in done.output


def test_settings_that_cannot_be_read_are_status_1(check, tmp_path):
    folder = write_double(tmp_path)
    (folder / "model.yaml").write_text("handler: handler.py\nbatchng: {}\n")
    for path in (tmp_path, folder):
        done = check(path)
        assert done.exit_code == 1, done.output
        assert "line 2" in done.output and "batching" in done.output


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_nothing_to_serve_is_status_2(check, tmp_path, name):
    (tmp_path / "empty").mkdir()
    done = check(tmp_path / name)
    assert done.exit_code == 2
    assert "Error: " in done.output
    assert check().exit_code == 2


def test_misspelt_path_suggests_the_nearest_path(check, tmp_path):
    write_double(tmp_path)
    assert "no such file or folder (did you mean double?)" in check(tmp_path / "duoble").output
    assert f"no such file or folder in {tmp_path}" in check(tmp_path / "xyz").output
    assert f"; {tmp_path}/none cannot be looked at either" in check(tmp_path / "none" / "m").output
    target = f"{tmp_path / 'double' / 'handler.py'}:Doubel"
    assert "has no Doubel at its top level (did you mean Double?)" in check(target).output
    assert "at its top level; it has Double" in check(target.replace("Doubel", "Xyz")).output


def test_duplicate_model_name_names_the_remedy(check, tmp_path):
    folder = write_double(tmp_path)
    assert "; rename one, or serve only one of them" in check(folder, folder).output


def test_the_result_as_json(check, tmp_path):
    write_double(tmp_path)
    write_broken(tmp_path)
    done = CliRunner().invoke(main, ["check", "--json", "--log-level", "error", str(tmp_path)])
    found = {one["name"]: one for one in json.loads(done.stdout)["models"]}
    assert done.exit_code == 1
    assert found["double"]["ok"] and found["double"]["warm"]
    assert found["double"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert not found["broken"]["ok"] and "the weights are gone" in found["broken"]["reason"]
