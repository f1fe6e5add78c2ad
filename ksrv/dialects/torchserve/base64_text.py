"""Base64 in the requests of TorchServe's routes, as leniently as TorchServe reads it."""

import base64
from typing import Any

decoded = base64.b64decode
"""Returns the bytes of a text in base64; characters outside of the alphabet are skipped.

Raises:
    binascii.Error: The rest is no base64 either.
"""


def without_base64(instance: dict[str, Any]) -> Any:
    """Return an instance of protocol v1 with its `{"b64": ...}` decoded: the instance itself, or its values.

    Raises:
        ValueError: A text is no base64.
        TypeError: The value is not a text.
    """
    if set(instance) == {"b64"}:
        return decoded(instance["b64"])
    return {
        name: decoded(value["b64"]) if isinstance(value, dict) and set(value) == {"b64"} else value
        for name, value in instance.items()
    }
