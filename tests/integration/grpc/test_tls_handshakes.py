"""Simultaneous TLS handshakes of the gRPC server."""

import contextlib
import ssl

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.models import write_double
from tests.support.processes import children
from tests.support.wire.arrival_times import came_at, note_arrivals, stopped
from tests.support.wire.client_hello import client_hello
from tests.support.wire.http_reader import open_connection


def test_handshakes_are_served_in_order_of_arrival(tmp_path):
    """If the newest handshake were served first, a flood of new handshakes would delay earlier handshakes."""
    key, cert = self_signed(tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    write_double(models)
    context = ssl.create_default_context(cafile=cert)
    context.set_alpn_protocols(["h2"])
    settings = {"tls_cert": str(cert), "tls_key": str(key)}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(models, **settings))
        [worker] = children(server.pid)
        with stopped(worker):
            peers = []
            for _ in range(40):
                peer = stack.enter_context(open_connection(server.grpc, 60))
                note_arrivals(peer)
                peer.sendall(client_hello(context))
                peers.append(peer)
        times = [came_at(peer) for peer in peers]
    assert times == sorted(times)
