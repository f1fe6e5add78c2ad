"""Reading the small files that an operator names and replaces while the server runs: tokens and certificates."""

import errno
import os

MOST_BYTES = 4 << 20


def read_operator_file(path: str) -> bytes:
    """Return the content of a file. Never wait for a process to open the other end of a named pipe.

    The master reads these files, and handles no signal meanwhile. A path that by mistake names an endless device
    or a named pipe without a writer must not block it.

    Args:
        path: The file; a pipe that has a writer is read to its end.

    Raises:
        OSError: It cannot be read, or is too large for such a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        os.set_blocking(descriptor, True)
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"File larger than {MOST_BYTES >> 20} MiB", path)
    return content
