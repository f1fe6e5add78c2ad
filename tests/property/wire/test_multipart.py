"""The parts of any multipart body against a slow reader, which looks at one line after the other."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from ksrv.errors import InvalidRequest
from ksrv.protocol.forms.multipart import read_multipart

DISPOSITION = b'Content-Disposition: form-data; name="%s"\r\n\r\n'
HEADS = [DISPOSITION % b"a", DISPOSITION % b"b", (DISPOSITION % b"c").replace(b"\r", b"")]
LINES = [b"\r\n", b"\n", b"\r", b"--B", b"\r\n--B\r\n", b"\r\n--B--\r\n", b"--", b" ", b"x", b":"]
PIECES = st.sampled_from(LINES + HEADS)
OTHER_FIELDS = rb"(?:\r\n(?! )[^:\r\n]*[^:\r\n ]:[^\r\n]*)*"
"""Lines of a head that declare a field ksrv ignores, such as `x:` or `--B:`."""


def slow_parts(body):
    """Return name and content of each part, or None for a body that is refused."""
    # Each line with the line end before it and after it.
    pieces = [b"", *re.split(rb"(\r\n|\r|\n)", body), b""]
    parts, text = [], None
    for before, line, after in zip(pieces[0:-1:2], pieces[1::2], pieces[2::2], strict=True):
        found = re.fullmatch(rb"--B(--)?[ \t]*", line)
        if found is None:
            text = text if text is None else text + before + line
            continue
        if before not in (b"", b"\r\n") or after not in (b"", b"\r\n"):
            return None
        if text is not None:
            # The line end in front of the delimiter may be the end of the head as well.
            head, end, content = (text + before).partition(b"\r\n\r\n")
            known = re.fullmatch(
                OTHER_FIELDS + rb'\r\nContent-Disposition: form-data; name="([a-c])"', head
            )
            if not end or known is None:
                return None
            parts.append((known[1].decode(), content[:-2]))
        if found[1] is not None:
            return parts
        text = b""
    return None


@given(st.lists(PIECES, max_size=16).map(lambda pieces: b"--B\r\n" + b"".join(pieces)))
@example(b"--B\n" + DISPOSITION % b"a" + b"1\r\n--B\r\n" + DISPOSITION % b"b" + b"2\r\n--B--")
@example(b"--B\r\n" + DISPOSITION % b"a" + b"1\n--B\r\n" + DISPOSITION % b"b" + b"2\r\n--B--")
@example(b"--B\r\n" + DISPOSITION % b"a" + b"1\r\n--B\n" + DISPOSITION % b"b" + b"2\r\n--B--")
@example(b"--B\r\n" + (DISPOSITION % b"a")[:-2] + b"--B\r\n" + DISPOSITION % b"b" + b"2\r\n--B--")
@example(b"--B\r\n" + DISPOSITION % b"a" + b"1\r\n--B--")
@example(b"--B\r\n--B:\r\n" + DISPOSITION % b"a" + b"1\r\n--B--")
@example(b"--B\r\nx :\r\n" + DISPOSITION % b"a" + b"1\r\n--B--")
@example(b"--B\r\n:\r\n" + DISPOSITION % b"a" + b"1\r\n--B--")
@example(b"--B\r\n" + DISPOSITION % b"a" + b"\r\n--B \t\r\n" + DISPOSITION % b"b" + b"--B--")
def test_multipart_body_is_read_completely_or_refused(body):
    try:
        found = [(part.name, bytes(part.value)) for part in read_multipart(memoryview(body), "B")]
    except InvalidRequest:
        found = None
    assert found == slow_parts(body)
