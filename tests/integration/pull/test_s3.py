"""`ksrv pull s3://...` from a server that speaks S3, with an operator's environment variables."""

import hashlib
import json
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from ksrv.client import Client
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.paths import ROOT
from tests.support.tree import tree

pytest.importorskip("obstore")
boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def endpoint():
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def put(endpoint, monkeypatch, request):
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="models")
    yield lambda key, content=b"": client.put_object(Bucket="models", Key=key, Body=content)
    for found in client.list_objects_v2(Bucket="models").get("Contents", ()):
        client.delete_object(Bucket="models", Key=found["Key"])


@pytest.fixture
def pull(put, tmp_path):
    def run(uri, *options, folder="cats"):
        return CliRunner().invoke(main, ["pull", uri, str(tmp_path / folder), *options])

    return run


def test_folder_arrives_with_its_subfolders(put, pull, tmp_path):
    contents = {"model.yaml": b"a: 1", "1/weights b%20ü.bin": b"x" * 3_000_000, "1/empty": b""}
    for name, content in contents.items():
        put(f"models/cats/{name}", content)
    put("models/cats/1/")  # consoles make such a key for a folder
    put("models/cats2/other", b"not of this folder")
    done = pull("s3://models/models/cats")
    assert done.exit_code == 0, done.output
    assert tree(tmp_path / "cats") == contents
    assert pull("s3://models/models/cats", "--verify").exit_code == 0
    assert "already" in pull("s3://models/models/cats").output


def test_single_object_arrives_in_the_folder(put, pull, tmp_path):
    put("models/cats.onnx", b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert pull(f"s3://models/models/cats.onnx#sha256={digest}").exit_code == 0
    assert tree(tmp_path / "cats") == {"cats.onnx": b"weights"}


def test_pulled_model_is_served(put, pull, tmp_path):
    for path in write_double(tmp_path / "written").iterdir():
        put(f"double/{path.name}", path.read_bytes())
    assert pull("s3://models/double", folder="models/double").exit_code == 0
    with Server(tmp_path / "models") as server:
        assert Client(server.url).ready("double")
    assert pull("s3://models/double", "--verify", folder="models/double").exit_code == 0


def test_commands_of_the_page(put, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    boto3.client("s3").create_bucket(Bucket="bucket")
    for path in write_double(tmp_path / "written").iterdir():
        boto3.client("s3").upload_file(str(path), "bucket", f"models/cats/1/{path.name}")
    block, signed = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "docs/pull.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert "ksrv check models/cats --signature " in signed  # test_signature.py runs such commands
    lines = block.splitlines()
    assert any(line.startswith("ksrv pull s3://bucket/models/cats/1 ") for line in lines)
    for line in lines:
        _, *words = shlex.split(line)
        if words[0] == "serve":
            with Server(tmp_path / words[1]) as server:
                assert Client(server.url).ready("cats")
        else:
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output


def test_changed_object_is_another_revision(put, pull, tmp_path):
    put("cats/a", b"one")
    assert pull("s3://models/cats").exit_code == 0
    put("cats/a", b"two")
    done = pull("s3://models/cats")
    assert done.exit_code == 1 and "pull into another folder" in " ".join(done.output.split())
    assert pull("s3://models/cats", folder="cats2").exit_code == 0
    assert tree(tmp_path / "cats2") == {"a": b"two"}
    locks = [
        json.loads((tmp_path / f".{name}.pull.lock").read_text()) for name in ("cats", "cats2")
    ]
    assert locks[0]["revision"] != locks[1]["revision"]


@pytest.mark.parametrize(
    "keys",
    [
        ["cats/../../etc/passwd"],
        ["cats//etc/passwd"],
        ["cats/./a"],
        ["cats/a\\b"],
        ["cats/a\x1bb"],
        ["cats/a", "cats/a/b"],
        ["cats/A.bin", "cats/a.bin"],
        ["cats/Dir/a", "cats/dir"],
    ],
)
def test_hostile_keys_are_refused(put, pull, tmp_path, keys):
    for key in keys:
        put(key, b"x")
    done = pull("s3://models/cats")
    assert done.exit_code == 1, done.output
    assert not (tmp_path / "cats").exists()
    assert {path.name for path in tmp_path.rglob("*")} <= {".cats.pull"}


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://models/nothing", "NoSuchKey"),
        ("s3://nobucket/x", "NoSuchBucket"),
        ("s3://", "s3://"),
        ("s3://models/cats#sha256=" + "0" * 64, "is a folder"),
    ],
)
def test_address_without_objects(put, pull, tmp_path, uri, says):
    put("cats/a", b"x")
    done = pull(uri)
    assert done.exit_code == 1 and says in done.output, done.output
    assert not (tmp_path / "cats").exists()


def test_unreachable_store_is_reported(pull, put, monkeypatch):
    monkeypatch.setattr("ksrv.pull.objects.RETRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    done = pull("s3://models/cats")
    assert done.exit_code == 1 and "Connection refused" in done.output


def test_plain_http_needs_an_endpoint_that_says_so(pull, put, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setattr("ksrv.pull.objects.RETRIES", 0)
    from ksrv.pull.objects import _store

    assert _store("s3://models/cats").client_options["allow_http"] == "false"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert _store("s3://models/cats").client_options["allow_http"] == "true"
    assert _store("https://host/cats").client_options["allow_http"] == "false"


def test_full_disk_is_reported_and_the_pull_goes_on(put, tmp_path):
    """The disk is a small tmpfs, which only the pulling process sees."""
    put("cats/a", b"x" * 700_000)
    put("cats/b", b"y" * 700_000)
    program = f"""
import subprocess, sys
from click.testing import CliRunner
from ksrv.cli.main import main
from ksrv.pull import folder
def pull():
    done = CliRunner().invoke(main, ["pull", "s3://models/cats", {str(tmp_path / "disk/cats")!r}])
    print(done.exit_code, done.output)
def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", {str(tmp_path / "disk")!r}], check=True)
mount("-o", "size=1m")
pull()
room = folder.shutil.disk_usage
folder.shutil.disk_usage = lambda path: room("/")  # as if another program took the room meanwhile
pull()
mount("-o", "remount,size=8m")
pull()
"""
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    early, late, again = [line for line in done.stdout.splitlines() if line]
    assert early.startswith("1 ") and "bytes, the disk" in early
    assert late.startswith("1 ") and "No space left on device" in late
    assert again.startswith("0 ")
