# Safe without the GIL: rules and results are written only by the call that creates them.
# cython: freethreading_compatible = True
"""The rules for request heads, and what a value of Host proves."""

from libc.stddef cimport size_t
from libc.string cimport memcpy

from native.base.own_host cimport (
    is_foreign_host as is_foreign_host_text, is_own_host as is_own_host_text,
)
from native.http.request_head cimport MOUNT_BYTES


cdef class HeadRules:
    """Which heads are accepted, and which requests the native server answers itself.

    Args:
        body: The largest Content-Length that the fast path takes.
        json: How many of these bytes may be JSON. None for all.
        head: The longest head, in bytes, of a request that the native server answers itself.
        fields: The most header fields of a head.
        chunks: The most chunks of a chunked body.
        longest_head: The longest head, in bytes, that is accepted.
        request_line: The longest request line in bytes, without its line end.
        field_size: The longest header field in bytes, with its line end.
        compression: Whether answers may be compressed, so that Accept-Encoding matters.
        origins: Whether answers tell web pages who may read them, so that Origin matters.
        own_hosts: Whether the app checks every head whose Host is foreign (see `is_foreign_host`).
        mount: The prefix of all paths, such as "/models"; "" for none.

    Raises:
        ValueError: The prefix has more than 128 bytes.
    """

    def __init__(
        self,
        *,
        body: int,
        json: int | None = None,
        size_t head=16384,
        size_t fields=100,
        size_t request_line=4094,
        size_t field_size=8190,
        size_t chunks=65536,
        size_t longest_head=65536,
        bint compression=False,
        bint origins=False,
        bint own_hosts=False,
        str mount="",
    ):
        cdef bytes prefix = mount.encode("ascii")
        self.limits.body = body
        if json is not None:
            self.limits.json = json
        self.limits.head = head
        self.limits.fields = fields
        self.limits.request_line = request_line
        self.limits.field_size = field_size
        self.limits.chunks = chunks
        self.limits.longest_head = max(head, longest_head)
        self.limits.compression = compression
        self.limits.origins = origins
        self.limits.own_hosts = own_hosts
        if len(prefix) > MOUNT_BYTES:
            raise ValueError(f"a mount prefix has at most {MOUNT_BYTES} bytes, not {len(prefix)}")
        memcpy(self.limits.mount, <const char *>prefix, len(prefix))
        self.limits.mount_length = len(prefix)


def is_own_host(bytes value not None) -> bool:
    """Return whether a value of Host is empty, an address, or a name that only this machine has."""
    return bool(is_own_host_text(value, len(value)))


def is_foreign_host(bytes value not None) -> bool:
    """Return whether a stranger can make a value of Host resolve to this machine (DNS rebinding).

    That is possible for names with a dot, except this machine's names.
    """
    return bool(is_foreign_host_text(value, len(value)))
