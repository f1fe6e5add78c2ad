"""The bound on the headers that a handler sets for one answer, over REST and as metadata of gRPC."""

from collections.abc import Mapping

from ksrv.errors import HandlerFailed, quote
from ksrv.limits import HANDLER_HEADERS, HEADER_OVERHEAD


def excess(headers: Mapping[str, str]) -> HandlerFailed | None:
    """Return the error of an answer whose headers are too large to be sent; None where they are not.

    Args:
        headers: The names and values that the handler chose.
    """
    sizes = {name: len(name) + len(str(text)) + HEADER_OVERHEAD for name, text in headers.items()}
    total = sum(sizes.values())
    if total <= HANDLER_HEADERS:
        return None
    largest = max(sizes, key=sizes.__getitem__)
    return HandlerFailed(
        f"the handler's response headers take {total} bytes, of which {quote(largest)} takes "
        f"{sizes[largest]}; {HANDLER_HEADERS} bytes are allowed, so put large values into outputs"
    )
