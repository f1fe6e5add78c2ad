"""`ksrv pull gs://...` and `az://...`, whose credentials and endpoints are obstore's business."""

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main
from tests.support.pull.azure import azure_server

pytest.importorskip("obstore")


def test_azure_container(tmp_path, monkeypatch):
    blobs = {"cats/a b": b"x" * 10, "cats/1/c": b"", "cats2/d": b"z"}
    with azure_server(blobs) as endpoint:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
        done = CliRunner().invoke(main, ["pull", "az://box/cats", str(tmp_path / "cats")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "cats/a b").read_bytes() == b"x" * 10
    assert (tmp_path / "cats/1/c").read_bytes() == b""
    assert not (tmp_path / "cats/d").exists()


def test_google_bucket(tmp_path, monkeypatch):
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        # Google's XML API is S3's for lists and reads.
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        credentials = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **credentials)
        client.create_bucket(Bucket="box")
        client.put_object(Bucket="box", Key="cats/1/a", Body=b"weights", ACL="public-read")
        monkeypatch.setenv("GOOGLE_BASE_URL", endpoint)
        monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
        done = CliRunner().invoke(main, ["pull", "gs://box/cats", str(tmp_path / "cats")])
    finally:
        server.stop()
    assert done.exit_code == 0, done.output
    assert (tmp_path / "cats/1/a").read_bytes() == b"weights"


def test_azure_without_account_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    done = CliRunner().invoke(main, ["pull", "az://box/cats", str(tmp_path / "cats")])
    assert done.exit_code == 1 and "Account must be specified" in done.output
