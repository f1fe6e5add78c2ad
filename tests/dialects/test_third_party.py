"""Dialects of third parties: the example, installed and served, and entry points that cannot be used."""

import shutil
import subprocess
import sys

import pytest
import requests

from ksrv.dialects.registry import BUILT_IN, load_dialects
from ksrv.handlers.runner import HandlerLoadError, make_runner
from ksrv.model.config import ModelConfig, ModelSource
from ksrv.server.settings import SettingsError
from ksrv.testing import Server, ServerFailed
from tests.support.paths import ROOT


def register(folder, code, *, name="broken", target="broken_dialect:DIALECT"):
    (folder / "broken_dialect.py").write_text(code)
    metadata = folder / "made_up-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[ksrv.dialects]\n{name} = {target}\n")


@pytest.fixture
def installed(tmp_path_factory):
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "dialect"
    shutil.copytree(ROOT / "examples" / "dialect", source)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps"]
    offline = ["--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *offline, str(source)], check=True, timeout=120)
    return target


def test_installed_example_serves_its_format_and_its_route(tmp_path, installed):
    (tmp_path / "cities").mkdir()
    (tmp_path / "cities/table.csv").write_text("Oslo,0.7\nBergen,0.3\n")
    body = {
        "inputs": [
            {"name": "key", "shape": [2], "datatype": "BYTES", "data": ["Bergen", "Oslo"]},
        ]
    }
    with Server(tmp_path, environment={"PYTHONPATH": str(installed)}) as server:
        answer = requests.post(f"{server.url}/v2/models/cities/infer", json=body)
        assert answer.json()["outputs"][0]["data"] == [0.3, 0.7]
        shown = requests.get(f"{server.url}/tables/cities")
        assert (shown.status_code, shown.json()) == (200, {"keys": ["Bergen", "Oslo"]})
        unknown = requests.get(f"{server.url}/tables/rivers")
        assert unknown.status_code == 404 and "rivers" in unknown.json()["error"]


def test_server_with_a_dialect_that_cannot_be_imported_ends_and_names_it(tmp_path):
    register(tmp_path, "raise RuntimeError('half written')\n")
    (tmp_path / "models").mkdir()
    environment = {"PYTHONPATH": str(tmp_path)}
    with (
        pytest.raises(ServerFailed) as failed,
        Server(tmp_path / "models", environment=environment),
    ):
        pass
    assert "dialect 'broken' of the package made-up (broken_dialect:DIALECT)" in str(failed.value)
    assert "RuntimeError: half written; correct or uninstall the package" in str(failed.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("DIALECT = 3\n", "is a int; expected an instance of ksrv.dialects.dialect.Dialect"),
        (
            "from ksrv.dialects.dialect import Dialect\nDIALECT = Dialect()\nDIALECT.name = 'triton'\n",
            "has the name 'triton' of another dialect",
        ),
        ("", "cannot be imported: AttributeError"),
    ],
)
def test_entry_point_that_is_no_dialect_is_an_error_that_names_it(
    tmp_path, monkeypatch, code, said
):
    register(tmp_path, code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_dialect", raising=False)
    with pytest.raises(SettingsError, match="dialect 'broken' of the package made-up") as failed:
        load_dialects()
    assert said in str(failed.value)


def test_built_in_dialects_have_their_folders():
    assert [one.name for one in load_dialects()] == list(BUILT_IN)
    folders = {one.parent.name for one in (ROOT / "ksrv/dialects").glob("*/dialect.py")}
    assert folders == set(BUILT_IN)


def test_a_runner_that_lacks_a_package_names_it(tmp_path):
    config = ModelConfig(runner="no_such_package.runner:Runner")
    source = ModelSource(name="m", version="", folder=tmp_path, root=tmp_path, config=config)
    expected = "the runner no_such_package.runner:Runner cannot be imported: No module named 'no_such_package'; pip install"
    with pytest.raises(HandlerLoadError, match=f"{expected} no_such_package"):
        make_runner(source)
