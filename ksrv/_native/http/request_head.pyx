# Safe without the GIL: rules and results are written only by the call that creates them.
# cython: freethreading_compatible = True
"""The classifier of request heads, for Python and the tests."""

from types import SimpleNamespace

cimport cython
from libc.stddef cimport size_t
from libc.string cimport memcpy

from native.base.own_host cimport (
    is_foreign_host as is_foreign_host_text, is_own_host as is_own_host_text,
)
from native.http.request_head cimport (
    Head, MOUNT_BYTES, SCHEME_NAMES, SCHEME_NAME_BYTES, Verdict, classify_head as classify,
    is_host as is_host_text,
)

if not cython.compiled:
    from collections.abc import Iterable, Sequence

VERDICTS = ("incomplete", "native", "app", "refused")
FAULTS = (
    "none", "line end", "too long", "request line too long", "too many fields", "field too long",
    "request line", "method", "target", "version", "field line", "field name", "folded",
    "field value",
    "length", "lengths", "length and coding", "coding", "old coding", "no host", "hosts", "host",
    "content types", "expectation",
)
ROUTES = ("none", "infer", "live", "ready", "server", "metadata", "model ready")


cdef class HeadRules:
    """Which heads are accepted, and which requests the native server answers itself.

    Args:
        body: The largest Content-Length that the fast path takes.
        json: How many of these bytes may be JSON. None for all.
        head: The longest head, in bytes, of a request that the native server answers itself.
        longest_head: The longest head, in bytes, that is accepted.
        request_line: The longest request line in bytes, without its line end.
        field_size: The longest header field in bytes, with its line end.
        compression: Whether answers may be compressed, so that Accept-Encoding matters.
        origins: Whether answers tell web pages who may read them, so that Origin matters.
        own_hosts: Whether the app checks every head whose Host is foreign (see `is_foreign_host`).
        scheme_names: gunicorn's `secure_scheme_headers`. A head may have at most one of them.
        mount: The prefix of all paths, such as "/models"; "" for none.

    Raises:
        ValueError: More than eight scheme names, or a name that is empty or longer than 47 bytes,
            or a prefix of more than 128 bytes.
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
        scheme_names: Sequence[str] = (),
        str mount="",
    ):
        cdef bytes name, prefix = mount.encode("ascii")
        cdef size_t index = 0
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
        names = [entry.lower().encode("ascii") for entry in scheme_names]
        if len(names) > SCHEME_NAMES:
            raise ValueError(
                f"at most {SCHEME_NAMES} scheme headers are supported, not {len(names)}"
            )
        for name in names:
            if not 0 < len(name) < SCHEME_NAME_BYTES:
                raise ValueError(f"a scheme header's name has 1 to 47 bytes, not {len(name)}")
            memcpy(self.limits.scheme[index], <const char *>name, len(name) + 1)
            self.limits.scheme_length[index] = len(name)
            index += 1
        self.limits.scheme_count = index
        if len(prefix) > MOUNT_BYTES:
            raise ValueError(f"a mount prefix has at most {MOUNT_BYTES} bytes, not {len(prefix)}")
        memcpy(self.limits.mount, <const char *>prefix, len(prefix))
        self.limits.mount_length = len(prefix)


def is_host(bytes value not None) -> bool:
    """Return whether a value of Host, without surrounding blanks, is empty or host[:port]."""
    return bool(is_host_text(value, len(value)))


def is_own_host(bytes value not None) -> bool:
    """Return whether a value of Host is empty, an address, or a name that only this machine has."""
    return bool(is_own_host_text(value, len(value)))


def is_foreign_host(bytes value not None) -> bool:
    """Return whether a stranger can make a value of Host resolve to this machine (DNS rebinding).

    That is possible for names with a dot, except this machine's names.
    """
    return bool(is_foreign_host_text(value, len(value)))


def classify_head(
    bytes data not None, HeadRules rules not None, pieces: Iterable[int] = ()
) -> SimpleNamespace:
    """Classify the first bytes of a message.

    Args:
        pieces: Sizes of earlier reads. The bytes are classified after each of them, as a connection
            would do, until the verdict is no longer "incomplete".

    Returns:
        The fields of `Head` in native/http/request_head.hpp, and `verdict`, one of `VERDICTS`.
        `fault` is one of `FAULTS`, `route` one of `ROUTES`. `json_length` is None if the head does
        not have it.
    """
    cdef Head head
    cdef size_t searched = 0
    cdef size_t filled = 0
    cdef size_t total = len(data)
    cdef const unsigned char *start = data
    cdef Verdict verdict = Verdict.incomplete
    for piece in (*pieces, total):
        filled = min(total, filled + <size_t>piece)
        verdict = classify(start, filled, &searched, rules.limits, &head)
        if verdict != Verdict.incomplete:
            break
    return SimpleNamespace(
        verdict=VERDICTS[<Py_ssize_t>verdict],
        fault=FAULTS[<Py_ssize_t>head.fault],
        route=ROUTES[<Py_ssize_t>head.route],
        name=data[head.name.offset:head.name.offset + head.name.length].decode("ascii"),
        version=data[head.version.offset:head.version.offset + head.version.length].decode("ascii"),
        length=head.length,
        content_length=head.content_length,
        json_length=head.json_length if head.has_json_length else None,
        close=bool(head.close),
        http_1_0=bool(head.http_1_0),
        chunked=bool(head.chunked),
        expects_continue=bool(head.expects_continue),
        question=bool(head.question),
    )
