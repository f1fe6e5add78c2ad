"""Values from a server's page of metrics."""

import re

from ksrv.testing import Server


def metric(server: Server, series: str) -> float:
    """Return the value of a series, named with its labels as the page writes them."""
    status, page = server.get("/metrics")
    assert status == 200
    [value] = re.findall(rf"^{re.escape(series)} (\S+)$", page.decode(), re.M)
    return float(value)


def bytes_in_flight(server: Server) -> float:
    """Return the bytes that requests and answers use."""
    return metric(server, "ksrv_bytes_in_flight")
