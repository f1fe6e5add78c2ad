"""The container's health check: exits with 0 while the server says that it is ready.

It asks the address that the server itself reads from `KSRV_HTTP`, over TLS if `KSRV_TLS_CERT` is set.
The certificate is not checked: the caller is inside of the same container. A server that wants
certificates of its clients (`KSRV_TLS_CLIENT_CA`) counts as healthy once it accepts connections.
"""

import http.client
import os
import socket
import ssl
import sys

SECONDS = 4.0


def ready() -> bool:
    """Ask the server whether it is ready."""
    host, _, port = os.environ.get("KSRV_HTTP", "127.0.0.1:8080").rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "::1"}.get(host, host).strip("[]")
    if os.environ.get("KSRV_TLS_CLIENT_CA"):
        with socket.create_connection((host, int(port)), timeout=SECONDS):
            return True
    connection: http.client.HTTPConnection
    if os.environ.get("KSRV_TLS_CERT"):
        unchecked = ssl.create_default_context()
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=SECONDS, context=unchecked
        )
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    connection.request("GET", "/v2/health/ready")
    return connection.getresponse().status == 200


if __name__ == "__main__":
    try:
        sys.exit(0 if ready() else 1)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"the server cannot be asked: {error}")
