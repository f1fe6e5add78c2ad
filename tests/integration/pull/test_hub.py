"""`ksrv pull hf://...` from a server that speaks the Hub's API, as huggingface_hub calls it."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.pull.hub_server import hub_server
from tests.support.tree import tree

pytest.importorskip("huggingface_hub")

WEIGHTS = os.urandom(1_000_000) * 15


@pytest.fixture
def hub():
    with hub_server() as hub:
        hub.files = {"config.json": b"{}", "onnx/model.onnx": WEIGHTS, ".gitattributes": b"x"}
        hub.large = {"onnx/model.onnx"}
        yield hub


@pytest.fixture
def pull(hub, tmp_path):
    def run(uri="hf://owner/cats", *options, **variables):
        names = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        names |= {"HF_HUB_DISABLE_XET": "1", **variables}
        return subprocess.run(
            [sys.executable, "-m", "ksrv", "pull", uri, str(tmp_path / "cats"), *options],
            env=names, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def test_repository_arrives_at_its_commit(hub, pull, tmp_path):
    done = pull()
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "cats") == hub.files
    lock = json.loads((tmp_path / ".cats.pull.lock").read_text())
    assert (lock["uri"], lock["revision"]) == ("hf://owner/cats", "a" * 40)
    assert not (tmp_path / ".cats.pull").exists()
    assert done.stderr == ""  # progress is for terminals
    assert "already" in pull().stdout
    hub.files["config.json"] = b"changed"
    assert pull("hf://owner/cats", "--verify").returncode == 0


@pytest.mark.parametrize("revision", ["v1", "b" * 40])
def test_revision_is_a_tag_or_a_commit(hub, pull, tmp_path, revision):
    hub.revisions["v1"] = "b" * 40
    assert pull(f"hf://owner/cats@{revision}").returncode == 0
    assert json.loads((tmp_path / ".cats.pull.lock").read_text())["revision"] == "b" * 40


def test_cut_transfer_goes_on(hub, pull, tmp_path):
    hub.cut_after = 12_000_000  # the library writes 10 MiB at once
    done = pull()
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "cats") == hub.files
    assert ("GET", f"/owner/cats/resolve/{'a' * 40}/onnx/model.onnx", "bytes=10485760-") in hub.seen


@pytest.mark.parametrize("name", ["config.json", "onnx/model.onnx"])
def test_other_content_of_the_same_size_is_refused(hub, pull, tmp_path, name):
    hub.sent[name] = bytes(len(hub.files[name]))
    done = pull()
    assert done.returncode == 1 and f"'{name}' has size and digest" in done.stderr
    assert not (tmp_path / "cats").exists()
    hub.sent.clear()
    assert pull().returncode == 0
    assert tree(tmp_path / "cats") == hub.files


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a//b", "a\\b"])
def test_hostile_names_are_refused(hub, pull, tmp_path, name):
    hub.files[name] = b"x"
    done = pull()
    assert done.returncode == 1 and "expected a relative path" in done.stderr
    assert not (tmp_path / "cats").exists()


def test_more_files_than_a_model_may_have_are_refused(hub, pull, tmp_path):
    hub.files = {str(number): b"" for number in range(100_001)}
    done = pull()
    assert done.returncode == 1 and "the source has 100001 files" in done.stderr
    assert not (tmp_path / "cats").exists()


def test_token_is_the_librarys(hub, pull):
    hub.token = "hf_secret"
    done = pull()
    assert done.returncode == 1 and "hf://owner/cats: " in done.stderr
    assert pull(HF_TOKEN="hf_secret").returncode == 0


@pytest.mark.parametrize(
    "uri",
    ["hf://owner/dogs", "hf://owner/cats@none", "hf://", "hf://a/b/c/d", "hf://owner/../cats"],
)
def test_unknown_repositories_are_reported(pull, uri):
    done = pull(uri)
    assert done.returncode == 1 and done.stderr.startswith(f"Error: {uri}: "), done.stderr
    assert "Traceback" not in done.stderr


def test_unreachable_hub_is_reported(pull):
    done = pull(HF_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 1 and done.stderr.startswith("Error: hf://owner/cats: ")
