"""Base64 in the requests of TorchServe's routes, as leniently as TorchServe reads it."""

import base64
from typing import Any

decoded = base64.b64decode
"""Returns the bytes of a text in base64; characters outside of the alphabet are skipped.

Raises:
    binascii.Error: The remaining characters are not base64.
"""


def without_base64(instance: dict[str, Any]) -> Any:
    """Return an instance of KServe v1 with `{"b64": ...}` decoded, for the instance itself or any of its values.

    Raises:
        ValueError: A text is not base64.
        TypeError: The value is not a text.
    """
    if set(instance) == {"b64"}:
        return decoded(instance["b64"])
    return {
        name: decoded(value["b64"]) if isinstance(value, dict) and set(value) == {"b64"} else value
        for name, value in instance.items()
    }
