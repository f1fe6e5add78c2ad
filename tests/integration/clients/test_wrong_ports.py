"""Clients whose URL has the right server and the wrong protocol learn which protocol the server speaks."""

import asyncio

import pytest

from ksrv.client import AsyncClient, Client
from ksrv.client.errors import ConnectionFailed, InvalidRequest
from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double


def told(url, error=ConnectionFailed, **options):
    """The errors of the blocking and the asynchronous client for a URL."""

    async def ask():
        async with AsyncClient(url, **options) as client:
            await client.metadata("double")

    with pytest.raises(error) as blocking, Client(url, **options) as client:
        client.metadata("double")
    with pytest.raises(error) as asynchronous:
        asyncio.run(ask())
    return str(blocking.value), str(asynchronous.value)


def test_https_to_http_and_http_to_grpc(tmp_path):
    write_double(tmp_path / "models")
    with Server(tmp_path / "models") as server:
        for text in told(f"https://{server.http}"):
            assert "begin the URL with http:// and not https://" in text
        for text in told(f"http://{server.grpc}", InvalidRequest):
            assert "this address speaks gRPC over HTTP/2" in text
            assert f"REST is at http://{server.http}" in text
        for text in told(f"grpcs://{server.grpc}"):
            assert "begin the URL with grpc:// and not grpcs://" in text
    for text in told(f"grpc://{server.grpc}"):  # which has ended
        assert "nothing listens there; start `ksrv serve`" in text


def test_http_to_the_grpc_of_grpcio(tmp_path):
    write_double(tmp_path / "models")
    with Server(tmp_path / "models", grpc_server="grpcio") as server:
        for text in told(f"http://{server.grpc}"):
            assert "give the address of HTTP and not that of gRPC" in text


def test_http_to_https(tmp_path):
    write_double(tmp_path / "models")
    key, cert = self_signed(tmp_path / "tls")
    with (
        Server(tmp_path / "models", tls_cert=str(cert), tls_key=str(key)) as server,
        pytest.raises(InvalidRequest, match=r"without TLS.*use https"),
    ):
        Client(f"http://{server.http}").metadata("double")


def test_grpc_without_tls_and_without_its_authority(tmp_path):
    write_double(tmp_path / "models")
    key, cert = self_signed(tmp_path / "tls")
    with Server(tmp_path / "models", tls_cert=str(cert), tls_key=str(key)) as server:
        for text in told(f"grpc://{server.grpc}"):
            assert "if the server has TLS, begin the URL with grpcs:// and not grpc://" in text
        for text in told(f"grpcs://{server.grpc}"):
            assert "its certificate is not accepted; the option --ca FILE" in text
        for text in told(f"https://{server.http}"):
            assert "the option --ca FILE, or ca= in Python, names an authority to trust" in text
