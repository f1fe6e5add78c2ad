# Needs the GIL: Python objects are read.
"""The limits of a server's connections, which the settings of the server choose by name."""

from typing import Any

from native.reactor.connection_limits cimport CONNECTION_SETTINGS, CONNECTION_SETTINGS_COUNT


cdef class ConnectionLimits:
    """The limits of connections and transfers, for the HTTP server or the gRPC server.

    Args:
        settings: A `ServerSettings`, whose fields have the names in
            native/reactor/connection_limits.hpp.
        others: Values that replace values of `settings`, by name.

    Raises:
        ValueError: No connection is allowed.
    """

    def __init__(self, settings: Any, **others: float):
        for index in range(CONNECTION_SETTINGS_COUNT):
            name = (<bytes>CONNECTION_SETTINGS[index].name).decode()
            value = others[name] if name in others else getattr(settings, name)
            CONNECTION_SETTINGS[index].set(&self.limits, value)
        if self.limits.connections < 1:
            raise ValueError("a server has at least one connection")
