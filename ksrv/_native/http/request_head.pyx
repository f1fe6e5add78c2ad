# Rules and results are written by the call that makes them.
# cython: freethreading_compatible = True
"""The request-head classifier, as Python and the tests see it."""

from libc.stddef cimport size_t
from libc.string cimport memcpy

VERDICTS = ("need more", "plain", "not mine")
ROUTES = ("none", "infer", "live", "ready")


cdef class HeadRules:
    """Which heads are plain: the limits of gunicorn's parser and of the HTTP server.

    Args:
        body: The greatest Content-Length that the fast path takes.
        json: Bytes of it that may be JSON; None for all.
        head: Bytes of the whole head.
        fields: Header fields.
        request_line: Bytes of the request line without its line end.
        field_size: Bytes of one header field with its line end.
        hold: Bodies up to this size are received before a message is handed over.
        compression: Whether answers may be compressed, so that Accept-Encoding matters.
        scheme_names: gunicorn's `secure_scheme_headers`; at most one of them may occur.

    Raises:
        ValueError: More than eight scheme names, or one that is empty or longer than 47 bytes.
    """

    def __init__(
        self, *, body, json=None, size_t head=16384, size_t fields=64, size_t request_line=4094,
        size_t field_size=8190, hold=65536, bint compression=False,
        scheme_names=()
    ):
        cdef bytes name
        cdef size_t index = 0
        self.limits.body = body
        if json is not None:
            self.limits.json = json
        self.limits.head = head
        self.limits.fields = fields
        self.limits.request_line = request_line
        self.limits.field_size = field_size
        self.limits.hold = hold
        self.limits.compression = compression
        names = [entry.lower().encode("ascii") for entry in scheme_names]
        if len(names) > SCHEME_NAMES:
            raise ValueError(
                f"at most {SCHEME_NAMES} scheme headers are supported, not {len(names)}"
            )
        for name in names:
            if not 0 < len(name) < SCHEME_NAME_BYTES:
                raise ValueError(f"a scheme header's name has 1 to 47 bytes, not {len(name)}")
            memcpy(self.limits.scheme[index], <const char *>name, len(name) + 1)
            index += 1
        self.limits.scheme_count = index


cdef class Recognition:
    """What was said about the bytes at the start of a message.

    Attributes:
        verdict: "need more", "plain" or "not mine".
        route: "infer", "live" or "ready" of a plain head, else "none".
        name: The model's name in the target.
        version: The version in the target, or "".
        length: Bytes of the head with its empty line; 0 while it was not found.
        content_length: Bytes of the body that follow.
        json_length: The Inference-Header-Content-Length, or None.
        close: Whether the connection of a plain message ends with its answer.
        hold: Body bytes that are worth receiving before a hand-over.
    """

    cdef readonly str verdict
    cdef readonly str route
    cdef readonly str name
    cdef readonly str version
    cdef readonly object length
    cdef readonly object content_length
    cdef readonly object json_length
    cdef readonly bint close
    cdef readonly object hold


cdef Recognition _recognition(Verdict verdict, const Head &head, const unsigned char *data):
    cdef Recognition said = Recognition.__new__(Recognition)
    said.name = said.version = ""
    said.verdict = VERDICTS[<Py_ssize_t>verdict]
    said.route = ROUTES[<Py_ssize_t>head.route]
    if head.name.length:
        said.name = data[head.name.offset:head.name.offset + head.name.length].decode("ascii")
    if head.version.length:
        said.version = data[
            head.version.offset:head.version.offset + head.version.length
        ].decode("ascii")
    said.length = head.length
    said.content_length = head.content_length
    said.json_length = head.json_length if head.has_json_length else None
    said.close = head.close
    said.hold = head.hold
    return said


def classify_head(const unsigned char[::1] data not None, HeadRules rules not None, pieces=()):
    """Judge the bytes at the start of a message.

    Args:
        data: Everything received since the message began.
        rules: What is plain.
        pieces: Sizes of earlier reads: the bytes are judged after each of them, as a connection
            would, until the verdict is no longer "need more".

    Returns:
        The `Recognition`.
    """
    cdef Head head
    cdef size_t searched = 0
    cdef size_t filled = 0
    cdef size_t total = data.shape[0]
    cdef const unsigned char *start = NULL
    cdef Verdict verdict = Verdict.need_more
    if total == 0:
        return _recognition(Verdict.need_more, head, start)
    start = &data[0]
    for piece in (*pieces, total):
        filled = min(total, filled + <size_t>piece)
        verdict = recognise(start, filled, &searched, rules.limits, &head)
        if verdict != Verdict.need_more:
            break
    return _recognition(verdict, head, start)
