"""TLS in the native HTTP server: handshakes, records, sessions, and misbehaving peers."""

import contextlib
import socket
import ssl
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ksrv.server.launch.tls import Certificates
from tests.support.certificates import self_signed
from tests.support.native.fast_path import ONE, ONE_YAML, message, opened, readable, row, serving
from tests.support.wait_until import wait_until
from tests.support.wire.client_hello import client_hello
from tests.support.wire.http_reader import read_all, read_message

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
ALLOWED = 32
"""Consecutive records without application data that BoringSSL's servers accept, too."""
SHORT = {
    "head_timeout": 0.5,
    "transfer_grace": 0.5,
    "min_transfer_rate": 1000,
    "keepalive": 0.5,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    made = {name: self_signed(folder, name) for name in ("server", "client", "other")}
    return made | {"expired": self_signed(folder, "expired", expired=True)}


def certificates(files, **settings):
    key, cert = files["server"]
    given = {
        "certfile": str(cert), "keyfile": str(key), "ca_certs": None, "is_ssl": True,
        "cert_reqs": ssl.CERT_NONE, "ciphers": None, "http_protocols": ["h1"],
    }  # fmt: skip
    return Certificates(SimpleNamespace(**given | settings))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("models") / "one", ONE, ONE_YAML) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(engine, files):
    tls = certificates(files).native_context("http/1.1")
    with opened(engine, tls=tls) as (_, address):
        yield address


@pytest.fixture
def impatient(engine, files):
    with opened(engine, tls=certificates(files).native_context(), connections=SHORT) as found:
        yield found


def client_context(files, version=None, client=None):
    context = ssl.create_default_context(cafile=str(files["server"][1]))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if client is not None:
        key, cert = files[client]
        context.load_cert_chain(cert, key)
    return context


def connect(address, context, **options):
    plain = socket.create_connection(address, 60)
    try:
        return context.wrap_socket(
            plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False, **options
        )
    except BaseException:
        plain.close()
        raise


def assert_serves(address, context, **options):
    with connect(address, context, **options) as client:
        client.sendall(message("one", {"x": row(1, 2)}))
        head, body, _ = read_message(client)
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body.endswith(row(1, 2).tobytes())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_connection_serves_many_messages_and_ends_with_close_notify(address, files, version):
    with connect(address, client_context(files, version)) as client:
        for _ in range(3):
            client.sendall(message("one", {"x": row(1, 2)}))
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")
        client.sendall(LAST)
        assert read_all(client).startswith(b"HTTP/1.1 200 OK")  # an end without close_notify raises


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["http/1.1"], "http/1.1"),
        (["h2", "http/1.1"], "http/1.1"),
        (["h2"], None),
        (["http/1.10", "http/1.", "x" * 255], None),
    ],
)
def test_the_protocol_is_chosen_by_alpn(address, files, offered, chosen):
    context = client_context(files)
    context.set_alpn_protocols(offered)
    with connect(address, context) as client:
        assert client.selected_alpn_protocol() == chosen
        client.sendall(LIVE)
        assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


def test_pipelined_messages_in_one_record_are_all_answered(address, files):
    with connect(address, client_context(files)) as client:
        client.sendall((LIVE + message("one", {"x": row(7)})) * 40)
        rest = b""
        for _ in range(80):
            head, _, rest = read_message(client, rest)
            assert head.startswith(b"HTTP/1.1 200 OK")
        assert rest == b""


@pytest.mark.parametrize("farewell", [True, False])
def test_a_body_that_is_cut_short_is_not_served(address, files, farewell):
    data = message("one", {"x": row(1, 2)})
    with connect(address, client_context(files)) as client:
        client.sendall(data[:-1])
        if farewell:
            with contextlib.suppress(OSError):
                client.settimeout(0.0)
                client.unwrap()
        plain = socket.socket(fileno=client.detach())
    with plain:
        plain.settimeout(60)
        plain.shutdown(socket.SHUT_WR)
        read_all(plain)
    assert_serves(address, client_context(files))


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 70000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
     b"\x80\x2e\x01\x00\x02" + b"\0" * 64, b"SSH-2.0-x\r\n"],
)  # fmt: skip
def test_garbage_ends_its_connection_and_nothing_else(address, files, garbage):
    with socket.create_connection(address, 60) as client:
        with contextlib.suppress(OSError):
            client.sendall(garbage)
            client.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in read_all(client)
    assert_serves(address, client_context(files))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("mode", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
def test_only_clients_with_a_certificate_of_the_authority_are_served(engine, files, version, mode):
    given = certificates(files, cert_reqs=mode, ca_certs=str(files["client"][1]))
    with opened(engine, tls=given.native_context()) as (server, address):
        assert_serves(address, client_context(files, version, "client"))
        refused = ["other"]
        if mode == ssl.CERT_REQUIRED:
            refused.append(None)
        else:
            assert_serves(address, client_context(files, version))
        for client in refused:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert|unknown ca|required"):
                assert_serves(address, client_context(files, version, client))
        wait_until(lambda: server.counters()["tls_refused"] == len(refused))


def test_an_expired_certificate_of_a_client_is_refused(engine, files):
    given = certificates(files, cert_reqs=ssl.CERT_REQUIRED, ca_certs=str(files["expired"][1]))
    with (
        opened(engine, tls=given.native_context()) as (_, address),
        pytest.raises(ssl.SSLError, match=r"(?i)expired"),
    ):
        assert_serves(address, client_context(files, client="expired"))


def names_that_clients_are_told(address, version):
    """The lines after the heading under which openssl prints the authorities' names, if any."""
    host, port = address
    seen = subprocess.run(
        ["openssl", "s_client", "-connect", f"{host}:{port}", version],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = seen.stdout.splitlines()
    heading = "Acceptable client certificate CA names"
    return lines[lines.index(heading) + 1 :] if heading in lines else []


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_clients_get_the_names_of_the_authorities(engine, files, tmp_path, version):
    both = tmp_path / "both.pem"
    both.write_text("".join(files[name][1].read_text() for name in ("client", "other")))
    rules = {"cert_reqs": ssl.CERT_OPTIONAL, "ca_certs": str(both)}
    with opened(engine, tls=certificates(files, **rules).native_context()) as (_, address):
        told = names_that_clients_are_told(address, version)
        assert {line.replace(" ", "") for line in told[:2]} == {"CN=client", "CN=other"}


def test_too_many_authorities_are_not_sent(engine, files, tmp_path):
    many = tmp_path / "many.pem"
    long_name = "/O=" + "x" * 64
    made = []
    for number in range(3):
        out = tmp_path / f"{number}.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", out.with_suffix(".key"),
             "-out", out, "-days", "1", "-subj", f"/CN={number}" + long_name * 300],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        made.append(out.read_text())
    many.write_text("".join([*made, files["client"][1].read_text()]))
    rules = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": str(many)}
    with opened(engine, tls=certificates(files, **rules).native_context()) as (_, address):
        assert names_that_clients_are_told(address, "-tls1_3") == []
        assert_serves(address, client_context(files, client="client"))


def session_of(address, context):
    with connect(address, context) as client:
        client.sendall(LIVE)
        read_message(client)
        return client.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("client", [None, "client"])
def test_session_resumes_at_every_worker_until_the_files_are_reread(engine, files, version, client):
    rules = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": str(files["client"][1])} if client else {}
    given = certificates(files, **rules)
    context = client_context(files, version, client)
    with (
        opened(engine, tls=given.native_context()) as (one, first),
        opened(engine, tls=given.native_context()) as (_, second),
        opened(engine, tls=certificates(files, **rules).native_context()) as (_, reloaded),
    ):
        session = session_of(first, context)
        for address, resumed in ((first, True), (second, True), (reloaded, False)):
            with connect(address, context, session=session) as again:
                assert again.session_reused == resumed
                again.sendall(LIVE)
                assert read_message(again)[0].startswith(b"HTTP/1.1 200 OK")
        assert one.counters()["tls_agreed"] == one.counters()["tls_resumed"] == 1


def test_a_handshake_in_trickling_bytes_is_ended_in_time(impatient, files):
    server, address = impatient
    with socket.create_connection(address, 60) as client, contextlib.suppress(OSError):
        for byte in client_hello(client_context(files)) * 100:
            client.sendall(bytes([byte]))
            time.sleep(0.02)
        raise AssertionError("the connection was never ended")
    assert server.counters()["too_slow"] == 1


def in_records(hello, size):
    """Split the message of a record into records of `size` bytes."""
    content = hello[5:]
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_handshake_in_some_small_records_succeeds(address, files):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = client_context(files).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(address, 60) as client:
        with contextlib.suppress(ssl.SSLWantReadError):
            made.do_handshake()
        client.sendall(in_records(outgoing.read(), 8))
        while True:
            received = client.recv(1 << 16)
            assert received, "the server closed the connection in the handshake"
            incoming.write(received)
            with contextlib.suppress(ssl.SSLWantReadError):
                made.do_handshake()
                break
        made.write(LAST)
        client.sendall(outgoing.read())
        incoming.write(read_all(client))
        assert made.read(1 << 16).startswith(b"HTTP/1.1 200 OK")


def test_handshake_in_too_many_records_is_ended(engine, files):
    hello = b"\x16\x03\x01\xff\xff" + b"\x01\x01\xf0\x00\x03\x03" + b"x" * 600
    tls = certificates(files).native_context()
    with (
        opened(engine, tls=tls, connections={"head_timeout": 3600.0}) as (server, address),
        socket.create_connection(address, 60) as client,
    ):
        client.sendall(in_records(hello, 1))
        assert read_all(client) == b""
        assert server.counters()["tls_refused"] == 1


def test_a_reader_that_stalls_is_dropped(engine, files):
    data = message("one", {"x": np.ones((1 << 20, 4), "<f4")})
    tls = certificates(files).native_context()
    with (
        opened(engine, tls=tls, connections={"transfer_grace": 2.0, "min_transfer_rate": 1000}) as (
            server,
            address,
        ),
        connect(address, client_context(files)) as client,
    ):
        client.sendall(data)
        wait_until(lambda: server.counters()["too_slow"] == 1)
        # Truncated without close_notify, which some releases of OpenSSL 3.0 report as the end of
        # the stream.
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            read_message(client)


def test_waiting_handshakes_need_no_further_event(engine, files):
    """No client sends a byte during the handshakes, and no deadline passes."""
    tls = certificates(files).native_context()
    with (
        opened(engine, tls=tls, connections={"head_timeout": 3600.0}) as (_, address),
        contextlib.ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(
                connect(address, client_context(files), do_handshake_on_connect=False)
            )
            for _ in range(64)
        ]
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
        wait_until(lambda: len(readable(clients, 60)) == len(clients))
        for client in clients:
            client.settimeout(60)
            client.do_handshake()
            client.sendall(LIVE)
            assert read_message(client)[0].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("command", "times", "version", "taken", "served"),
    [
        (b"K\n", 1, "-tls1_3", b"KEYUPDATE", True),
        (b"k\n", ALLOWED, "-tls1_3", b"KEYUPDATE", True),
        (b"k\n", ALLOWED + 1, "-tls1_3", b"KEYUPDATE", False),
        (b"R\n", 1, "-tls1_2", b"RENEGOTIATING", False),
    ],
)
def test_keys_are_renewed_and_renegotiation_is_refused(
    address, files, tmp_path, command, times, version, taken, served
):
    """`K` requests new keys of both sides, `k` renews the client's keys alone, `R` requests another handshake."""
    host, port = address
    path = tmp_path / "output"
    with path.open("wb") as output:
        client = subprocess.Popen(
            ["openssl", "s_client", version, "-connect", f"{host}:{port}", "-crlf"],
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, bufsize=0,
        )  # fmt: skip

        def has_told(words, count=1):
            return path.read_bytes().count(words) >= count or client.poll() is not None

        with client, contextlib.suppress(BrokenPipeError):
            # s_client recognises a command only if it reads it separately.
            wait_until(lambda: has_told(b"Verify return code"))
            for done in range(times):
                client.stdin.write(command)
                wait_until(lambda done=done: has_told(taken, done + 1))
            client.stdin.write(LAST.replace(b"\r\n", b"\n"))
            client.wait(60)
    told = path.read_bytes()
    assert (b"HTTP/1.1 200 OK" in told) == served, told
    assert_serves(address, client_context(files))
