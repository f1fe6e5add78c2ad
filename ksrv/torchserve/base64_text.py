"""Base64 in the requests of TorchServe's routes, as leniently as TorchServe reads it."""

import base64

from ksrv._native.json.base64_text import Base64Error, decode


def decoded(text: str | bytes) -> bytes:
    """Return the bytes that a text stands for; characters outside of the alphabet are passed over.

    Args:
        text: The text.

    Raises:
        binascii.Error: The rest is no base64 either.
    """
    try:
        return decode(text)
    except Base64Error:
        return base64.b64decode(text)
